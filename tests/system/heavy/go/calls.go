// What users of grpc-go do, which has an HTTP/2 of its own:
//
//	go run calls.go ADDRESS FOLDER
//
// The folder has messages as bytes: NAME.in is asked, NAME.out is what is to come back. Prints {name of a check: what
// went wrong, or null} as its last line.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	infer   = "/inference.GRPCInferenceService/ModelInfer"
	stream  = "/inference.GRPCInferenceService/ModelStreamInfer"
	predict = "/tensorflow.serving.PredictionService/Predict"
)

// Messages are bytes already.
type raw struct{}

func (raw) Marshal(value interface{}) ([]byte, error) { return value.([]byte), nil }
func (raw) Unmarshal(data []byte, value interface{}) error {
	*value.(*[]byte) = data
	return nil
}
func (raw) Name() string { return "proto" }

var folder string

func read(name string) []byte {
	data, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		panic(err)
	}
	return data
}

func connect(more ...grpc.DialOption) *grpc.ClientConn {
	unlimited := grpc.WithDefaultCallOptions(
		grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30), grpc.ForceCodec(raw{}))
	connection, err := grpc.Dial(os.Args[1], append(more, grpc.WithInsecure(), unlimited)...)
	if err != nil {
		panic(err)
	}
	return connection
}

func within(seconds float64) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Duration(seconds*float64(time.Second)))
}

// One call by name, and its answer compared.
func ask(connection *grpc.ClientConn, method, name string, options ...grpc.CallOption) error {
	limit, cancel := within(60)
	defer cancel()
	var answer []byte
	if err := connection.Invoke(limit, method, read(name+".in"), &answer, options...); err != nil {
		return err
	}
	if !bytes.Equal(answer, read(name+".out")) {
		return fmt.Errorf("%s: another answer: %.200q", name, answer)
	}
	return nil
}

func wants(err error, code codes.Code, text string) error {
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
		return fmt.Errorf("not %s with %q: %v", code, text, err)
	}
	return nil
}

func first(errors ...error) error {
	for _, err := range errors {
		if err != nil {
			return err
		}
	}
	return nil
}

func open(limit context.Context, connection *grpc.ClientConn) grpc.ClientStream {
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	made, err := connection.NewStream(limit, both, stream)
	if err != nil {
		panic(err)
	}
	return made
}

var checks = map[string]func() error{
	"calls": func() error {
		connection := connect()
		defer connection.Close()
		for _, name := range []string{"small", "small", "large"} {
			if err := ask(connection, infer, name); err != nil {
				return err
			}
		}
		return ask(connection, predict, "predict")
	},
	"calls_side_by_side": func() error {
		connection := connect()
		defer connection.Close()
		failed := make(chan error, 500)
		var all sync.WaitGroup
		for n := 0; n < 500; n++ {
			all.Add(1)
			go func() {
				defer all.Done()
				if err := ask(connection, infer, "small"); err != nil {
					failed <- err
				}
			}()
		}
		all.Wait()
		close(failed)
		return <-failed
	},
	"small_windows": func() error {
		connection := connect(grpc.WithInitialWindowSize(1<<16), grpc.WithInitialConnWindowSize(1<<16))
		defer connection.Close()
		return ask(connection, infer, "large")
	},
	"compressed": func() error {
		connection := connect()
		defer connection.Close()
		return ask(connection, infer, "large", grpc.UseCompressor("gzip"))
	},
	"errors": func() error {
		connection := connect()
		defer connection.Close()
		if err := wants(ask(connection, infer, "nobody"), codes.NotFound, "nobody ☃ 100%"); err != nil {
			return err
		}
		if err := wants(ask(connection, "/no.Such/Method", "small"), codes.Unimplemented, ""); err != nil {
			return err
		}
		return ask(connection, infer, "small")
	},
	"metadata": func() error {
		connection := connect()
		defer connection.Close()
		var trailer metadata.MD
		limit, cancel := within(60)
		defer cancel()
		limit = metadata.AppendToOutgoingContext(limit, "x-request-id", "go-1", "x-bin", "\x00\xff")
		var answer []byte
		if err := connection.Invoke(limit, infer, read("small.in"), &answer, grpc.Trailer(&trailer)); err != nil {
			return err
		}
		if told := trailer.Get("x-request-id"); len(told) != 1 || told[0] != "go-1" {
			return fmt.Errorf("%v", trailer)
		}
		return nil
	},
	"a_conversation": func() error {
		connection := connect()
		defer connection.Close()
		limit, cancel := within(60)
		defer cancel()
		talk := open(limit, connection)
		for n := 0; n < 100; n++ {
			if err := talk.SendMsg(read("small.in")); err != nil {
				return err
			}
		}
		if err := talk.CloseSend(); err != nil {
			return err
		}
		for n := 0; n < 100; n++ {
			var answer []byte
			if err := talk.RecvMsg(&answer); err != nil {
				return err
			}
			if !bytes.Equal(answer, read("streamed.out")) {
				return fmt.Errorf("another answer: %q", answer)
			}
		}
		var answer []byte
		if err := talk.RecvMsg(&answer); err != io.EOF {
			return fmt.Errorf("no end: %v", err)
		}
		return nil
	},
	"a_conversation_that_is_left": func() error {
		connection := connect()
		defer connection.Close()
		limit, cancel := within(60)
		talk := open(limit, connection)
		var answer []byte
		if err := first(talk.SendMsg(read("countdown.in")), talk.RecvMsg(&answer)); err != nil {
			return err
		}
		cancel()
		var err error
		for err == nil {
			err = talk.RecvMsg(&answer)
		}
		return first(wants(err, codes.Canceled, ""), ask(connection, infer, "small"))
	},
	"a_deadline": func() error {
		connection := connect()
		defer connection.Close()
		limit, cancel := within(0.3)
		defer cancel()
		talk := open(limit, connection)
		err := talk.SendMsg(read("countdown.in"))
		var answer []byte
		for err == nil {
			err = talk.RecvMsg(&answer)
		}
		return first(wants(err, codes.DeadlineExceeded, ""), ask(connection, infer, "small"))
	},
}

func main() {
	folder = os.Args[2]
	outcomes := map[string]interface{}{}
	for name, check := range checks {
		outcomes[name] = nil
		if err := check(); err != nil {
			outcomes[name] = err.Error()
		}
	}
	told, _ := json.Marshal(outcomes)
	fmt.Println(string(told))
}
