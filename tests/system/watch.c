/* Preloaded into a server (LD_PRELOAD): one line in the file WATCH_LOG for each name that it looks up, each address that it
 * connects, sends or binds to, and each path that it opens for writing, makes or moves.
 *
 * What libc does by itself inside one of its functions is not seen, so those functions stand here, too. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void note(const char *what, const char *detail)
{
    const char *log = getenv("WATCH_LOG");
    char line[5000];
    if (!log) return;
    int size = snprintf(line, sizeof line, "%s %s\n", what, detail ? detail : "-");
    if (size >= (int)sizeof line) size = sizeof line - 1;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return;
    syscall(SYS_write, fd, line, (size_t)size);
    syscall(SYS_close, fd);
}

static void note_address(const char *what, const struct sockaddr *address)
{
    char host[INET6_ADDRSTRLEN] = "?", text[200];
    if (!address) return;
    switch (address->sa_family) {
    case AF_INET: {
        const struct sockaddr_in *in = (const void *)address;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        snprintf(text, sizeof text, "%s %d", host, ntohs(in->sin_port));
        break;
    }
    case AF_INET6: {
        const struct sockaddr_in6 *in = (const void *)address;
        inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof host);
        snprintf(text, sizeof text, "%s %d", host, ntohs(in->sin6_port));
        break;
    }
    case AF_UNIX:
        snprintf(text, sizeof text, "unix %.100s", ((const struct sockaddr_un *)(const void *)address)->sun_path);
        break;
    default:
        snprintf(text, sizeof text, "family-%d 0", address->sa_family);
    }
    note(what, text);
}

static void note_path(const char *what, int folder, const char *path)
{
    char base[4096] = "", whole[4900], link[64];
    if (path && path[0] != '/') {
        if (folder == AT_FDCWD) {
            if (!getcwd(base, sizeof base)) base[0] = 0;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t size = readlink(link, base, sizeof base - 1);
            base[size < 0 ? 0 : size] = 0;
        }
        snprintf(whole, sizeof whole, "%s/%s", base, path);
        path = whole;
    }
    note(what, path);
}

int connect(int fd, const struct sockaddr *address, socklen_t size)
{
    note_address("connect", address);
    return REAL(connect)(fd, address, size);
}

int bind(int fd, const struct sockaddr *address, socklen_t size)
{
    note_address("bind", address);
    return REAL(bind)(fd, address, size);
}

ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *address, socklen_t length)
{
    note_address("send", address);
    return REAL(sendto)(fd, data, size, flags, address, length);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    note_address("send", message->msg_name);
    return REAL(sendmsg)(fd, message, flags);
}

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    note("lookup", host);
    return REAL(getaddrinfo)(host, service, hints, found);
}

struct hostent *gethostbyname(const char *host)
{
    note("lookup", host);
    return REAL(gethostbyname)(host);
}

int gethostbyname_r(const char *host, struct hostent *ret, char *buf, size_t size, struct hostent **result, int *error)
{
    note("lookup", host);
    return REAL(gethostbyname_r)(host, ret, buf, size, result, error);
}

#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))
#define MODE(flags, mode)                                                                                              \
    mode_t mode = 0;                                                                                                   \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                                             \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }
#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...)                                                                         \
    {                                                                                                                  \
        MODE(flags, mode)                                                                                              \
        if (WRITES(flags)) note_path("write", AT_FDCWD, path);                                                         \
        return REAL(name)(path, flags, mode);                                                                          \
    }
#define OPENAT(name)                                                                                                   \
    int name(int folder, const char *path, int flags, ...)                                                             \
    {                                                                                                                  \
        MODE(flags, mode)                                                                                              \
        if (WRITES(flags)) note_path("write", folder, path);                                                           \
        return REAL(name)(folder, path, flags, mode);                                                                  \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

#define OPEN_2(name)                                                                                                   \
    int name(const char *path, int flags)                                                                              \
    {                                                                                                                  \
        if (WRITES(flags)) note_path("write", AT_FDCWD, path);                                                         \
        return REAL(name)(path, flags);                                                                                \
    }
#define OPENAT_2(name)                                                                                                 \
    int name(int folder, const char *path, int flags)                                                                  \
    {                                                                                                                  \
        if (WRITES(flags)) note_path("write", folder, path);                                                           \
        return REAL(name)(folder, path, flags);                                                                        \
    }
int __open_2(const char *, int);
int __open64_2(const char *, int);
int __openat_2(int, const char *, int);
int __openat64_2(int, const char *, int);
OPEN_2(__open_2)
OPEN_2(__open64_2)
OPENAT_2(__openat_2)
OPENAT_2(__openat64_2)

int creat(const char *path, mode_t mode)
{
    note_path("write", AT_FDCWD, path);
    return REAL(creat)(path, mode);
}

#define FOPEN(name)                                                                                                    \
    FILE *name(const char *path, const char *mode)                                                                     \
    {                                                                                                                  \
        if (strpbrk(mode, "wa+")) note_path("write", AT_FDCWD, path);                                                  \
        return REAL(name)(path, mode);                                                                                 \
    }
FOPEN(fopen)
FOPEN(fopen64)

#define MAKES(name)                                                                                                    \
    int name(char *path)                                                                                               \
    {                                                                                                                  \
        note_path("write", AT_FDCWD, path);                                                                            \
        return REAL(name)(path);                                                                                       \
    }
MAKES(mkstemp)
MAKES(mkstemp64)

char *mkdtemp(char *path)
{
    note_path("write", AT_FDCWD, path);
    return REAL(mkdtemp)(path);
}

int shm_open(const char *name, int flags, mode_t mode)
{
    if (WRITES(flags)) note_path("write", AT_FDCWD, name);
    return REAL(shm_open)(name, flags, mode);
}

int mkdir(const char *path, mode_t mode)
{
    note_path("write", AT_FDCWD, path);
    return REAL(mkdir)(path, mode);
}

int mkdirat(int folder, const char *path, mode_t mode)
{
    note_path("write", folder, path);
    return REAL(mkdirat)(folder, path, mode);
}

int rename(const char *from, const char *to)
{
    note_path("write", AT_FDCWD, to);
    return REAL(rename)(from, to);
}

int renameat(int folder, const char *from, int other, const char *to)
{
    note_path("write", other, to);
    return REAL(renameat)(folder, from, other, to);
}

int symlink(const char *target, const char *path)
{
    note_path("write", AT_FDCWD, path);
    return REAL(symlink)(target, path);
}

int link(const char *from, const char *to)
{
    note_path("write", AT_FDCWD, to);
    return REAL(link)(from, to);
}
