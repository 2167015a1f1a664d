/* Calls that lose what they bring when they end in EFAULT: each of these tests fails without the dispatch. */
#include "pager.h"
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/msg.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>

static void datagram(void)
{
    int ends[2];
    arena_start(64);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    CHECK(send(ends[0], "one", 3, 0) == 3 && send(ends[0], "two", 3, 0) == 3);
    char *buffer = across(64);
    away();
    recv(ends[1], buffer, 64, 0);
    away();
    recv(ends[1], buffer + 32, 32, 0);
    CHECK(!memcmp(buffer, "one", 3) && !memcmp(buffer + 32, "two", 3));
}

static int udp(struct sockaddr_in *address)
{
    socklen_t len = sizeof *address;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(bind(fd, (struct sockaddr *)address, len) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)address, &len) == 0);
    return fd;
}

static void datagram_address(void)
{
    struct sockaddr_in to, from;
    arena_start(64);
    int receiver = udp(&to), sender = udp(&from);
    struct sockaddr_in *address = across(sizeof *address);
    socklen_t *len = across(sizeof *len);
    char buffer[8] = "";
    *len = sizeof *address;
    CHECK(sendto(sender, "one", 3, 0, (struct sockaddr *)&to, sizeof to) == 3);
    away();
    CHECK(recvfrom(receiver, buffer, 8, MSG_DONTWAIT, (struct sockaddr *)address, len) == 3);
    CHECK(!strcmp(buffer, "one") && address->sin_port == from.sin_port && *len == sizeof *address);
}

static void datagrams(void)
{
    int ends[2];
    arena_start(64);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    CHECK(send(ends[0], "one", 3, 0) == 3 && send(ends[0], "two", 3, 0) == 3);
    struct mmsghdr *messages = across(2 * sizeof *messages);
    for (int i = 0; i < 2; i++) {
        struct iovec *vector = across(sizeof *vector);
        *vector = (struct iovec){across(16), 16};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = vector, .msg_iovlen = 1};
    }
    away();
    CHECK(recvmmsg(ends[1], messages, 2, MSG_DONTWAIT, 0) == 2);
    CHECK(messages[1].msg_len == 3 && !memcmp(messages[1].msg_hdr.msg_iov->iov_base, "two", 3));
}

static void event_counter(void)
{
    arena_start(64);
    int fd = eventfd(7, EFD_NONBLOCK);
    uint64_t *value = across(8);
    away();
    CHECK(read(fd, value, 8) == 8 && *value == 7);
}

static void timer_counter(void)
{
    arena_start(64);
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct itimerspec *soon = across(sizeof *soon);
    soon->it_value.tv_nsec = 1;
    CHECK(timerfd_settime(fd, 0, soon, 0) == 0);
    uint64_t *value = across(8);
    usleep(2000);
    away();
    CHECK(read(fd, value, 8) == 8 && *value == 1);
}

static void signal_descriptor(void)
{
    arena_start(64);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &set, 0) == 0);
    int fd = signalfd(-1, &set, SFD_NONBLOCK);
    struct signalfd_siginfo *info = across(sizeof *info);
    raise(SIGUSR1);
    away();
    CHECK(read(fd, info, sizeof *info) == sizeof *info && info->ssi_signo == SIGUSR1);
}

static void watched_file(void)
{
    arena_start(64);
    char name[] = "/tmp/dispatch-XXXXXX";
    int fd = inotify_init1(IN_NONBLOCK), file = mkstemp(name);
    CHECK(inotify_add_watch(fd, name, IN_ALL_EVENTS) >= 0 && write(file, "x", 1) == 1);
    struct inotify_event *event = across(4096);
    away();
    ssize_t got = read(fd, event, 4096);
    unlink(name);
    CHECK(got >= (ssize_t)sizeof *event && event->mask == IN_MODIFY);
}

static void message_queue(void)
{
    arena_start(64);
    struct message {
        long kind;
        char text[200];
    } message = {1, "one"}, *got = across(sizeof *got);
    int queue = msgget(IPC_PRIVATE, 0600);
    if (queue < 0) {
        puts("SKIPPED: no message queues");
        exit(0);
    }
    CHECK(msgsnd(queue, &message, 200, 0) == 0);
    away();
    ssize_t len = msgrcv(queue, got, 200, 0, IPC_NOWAIT);
    int error = errno;
    msgctl(queue, IPC_RMID, 0);
    errno = error;
    CHECK(len == 200 && got->kind == 1 && !strcmp(got->text, "one"));
}

static void child_status(void)
{
    arena_start(64);
    pid_t child = fork();
    if (child == 0)
        _exit(7);
    /* Memory that the child had a copy of could not be taken out. */
    int *status = across(sizeof *status);
    siginfo_t info;
    CHECK(waitid(P_PID, child, &info, WEXITED | WNOWAIT) == 0);
    away();
    CHECK(syscall(SYS_wait4, child, status, 0, 0) == child && WEXITSTATUS(*status) == 7);
}

static void child_info(void)
{
    arena_start(64);
    pid_t child = fork();
    if (child == 0)
        _exit(7);
    siginfo_t info, *got = across(sizeof *got);
    CHECK(waitid(P_PID, child, &info, WEXITED | WNOWAIT) == 0);
    away();
    CHECK(waitid(P_PID, child, got, WEXITED) == 0 && got->si_pid == child && got->si_status == 7);
}

static void connection(void)
{
    arena_start(64);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, *from;
    socklen_t len = sizeof at, *from_len = across(sizeof *from_len);
    int listener = socket(AF_INET, SOCK_STREAM, 0), caller = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&at, len) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &len) == 0);
    CHECK(connect(caller, (struct sockaddr *)&at, len) == 0);
    from = across(sizeof *from);
    *from_len = sizeof *from;
    away();
    int accepted = accept4(listener, (struct sockaddr *)from, from_len, SOCK_NONBLOCK);
    CHECK(accepted >= 0 && from->sin_family == AF_INET && *from_len == sizeof *from);
}

static void waited_signal(void)
{
    arena_start(64);
    sigset_t set;
    siginfo_t *info = across(sizeof *info);
    struct timespec now = {0, 0};
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &set, 0) == 0);
    raise(SIGUSR1);
    away();
    CHECK(sigtimedwait(&set, info, &now) == SIGUSR1 && info->si_signo == SIGUSR1);
}

static void socket_error(void)
{
    struct sockaddr_in to, from;
    arena_start(64);
    int receiver = udp(&to), sender = udp(&from);
    close(receiver);
    CHECK(connect(sender, (struct sockaddr *)&to, sizeof to) == 0 && send(sender, "x", 1, 0) == 1);
    usleep(10000);
    int *error = across(sizeof *error);
    socklen_t len = sizeof *error;
    away();
    CHECK(getsockopt(sender, SOL_SOCKET, SO_ERROR, error, &len) == 0 && *error == ECONNREFUSED);
}

static void passed_descriptor(void)
{
    arena_start(64);
    int ends[2], tube[2], count = 0;
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } rights = {.align = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && pipe(tube) == 0);
    memcpy(CMSG_DATA(&rights.align), &tube[1], sizeof(int));
    struct iovec vector = {"x", 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &rights,
                             .msg_controllen = sizeof rights};
    CHECK(sendmsg(ends[0], &message, 0) == 1);
    struct msghdr *got = across(sizeof *got);
    struct iovec *into = across(sizeof *into);
    *into = (struct iovec){across(16), 16};
    *got = (struct msghdr){.msg_iov = into, .msg_iovlen = 1, .msg_control = across(256),
                           .msg_controllen = 256};
    /* The memory of the descriptors alone is away: without the dispatch this is no error. */
    away();
    CHECK(*(volatile char *)into->iov_base == 0);
    CHECK(recvmsg(ends[1], got, MSG_DONTWAIT) == 1 && !(got->msg_flags & MSG_CTRUNC));
    struct cmsghdr *header = CMSG_FIRSTHDR(got);
    CHECK(header && header->cmsg_type == SCM_RIGHTS);
    memcpy(&count, CMSG_DATA(header), sizeof count);
    CHECK(write(count, "y", 1) == 1);
}

const struct test lost_tests[] = {
    {"datagram", datagram},
    {"datagram_address", datagram_address},
    {"datagrams", datagrams},
    {"event_counter", event_counter},
    {"timer_counter", timer_counter},
    {"signal_descriptor", signal_descriptor},
    {"watched_file", watched_file},
    {"message_queue", message_queue},
    {"child_status", child_status},
    {"child_info", child_info},
    {"connection", connection},
    {"waited_signal", waited_signal},
    {"socket_error", socket_error},
    {"passed_descriptor", passed_descriptor},
    {0, 0},
};
