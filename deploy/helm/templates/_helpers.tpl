{{- define "tensorgate.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "tensorgate.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name }}{{ end -}}
{{- end }}
{{- define "tensorgate.config" -}}
{{- if .Values.config }}{{ .Values.config }}{{ else }}{{ .Files.Get "gateway.yaml" }}{{ end -}}
{{- end }}
