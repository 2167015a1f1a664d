/* Each line of the table of calls (common/src/call_table.rs) that names memory, by a real call: made with
 * all of its memory present, then with all of it away. Both must end alike. Each piece of memory crosses a
 * border of pages, so that a size that is too short is found. Calls that change the machine are made such
 * that the kernel refuses them after it has read what they point to. */
#include "pager.h"
#include <linux/futex.h>
#include <linux/sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>

/* What older headers do not name. */
enum {
    SYS_cachestat_here = 451,
    SYS_fchmodat2_here = 452,
    SYS_futex_wake_here = 454,
    SYS_futex_wait_here = 455,
    SYS_futex_requeue_here = 456,
};
#ifndef SYS_cachestat
#define SYS_cachestat SYS_cachestat_here
#define SYS_fchmodat2 SYS_fchmodat2_here
#define SYS_futex_wake SYS_futex_wake_here
#define SYS_futex_wait SYS_futex_wait_here
#define SYS_futex_requeue SYS_futex_requeue_here
#endif

static long call(long number, const long *args)
{
    register long a3 __asm__("r10") = args[3], a4 __asm__("r8") = args[4], a5 __asm__("r9") = args[5];
    long result = number;
    __asm__ volatile("syscall"
                     : "+a"(result)
                     : "D"(args[0]), "S"(args[1]), "d"(args[2]), "r"(a3), "r"(a4), "r"(a5)
                     : "rcx", "r11", "memory");
    return result;
}

static int failures;
static unsigned char *copy;

/* How the results of two calls are compared. */
enum { SAME, DESCRIPTOR, SIGN };

static long finish(long number, long result, int kind)
{
    if (kind == DESCRIPTOR && result >= 0)
        close(result);
    if (kind != SAME && result >= 0)
        return 0;
    (void)number;
    return result;
}

static void compare(const char *name, long number, int kind, const long *args)
{
    size_t len = arena_used();
    memcpy(copy, arena, len);
    long present = call(number, args);
    if (present == -EFAULT || present == -ENOSYS)
        printf("%s: %s\n", name, present == -EFAULT ? "this test is wrong" : "unknown here");
    failures += present == -EFAULT;
    present = finish(number, present, kind);
    memcpy(arena, copy, len);
    away();
    long missing = finish(number, call(number, args), kind);
    if (missing != present) {
        printf("%s: %ld with its memory present, %ld without\n", name, present, missing);
        failures++;
    }
    arena_reset();
}

#define ROW(name, kind, ...)                                                                                 \
    do {                                                                                                     \
        long row_args[6] = {__VA_ARGS__};                                                                    \
        printf("row %s\n", #name);                                                                           \
        compare(#name, SYS_##name, kind, row_args);                                                          \
    } while (0)

static long text(const char *what)
{
    char *at = across(strlen(what) + 1);
    return (long)strcpy(at, what);
}

static long room(size_t len)
{
    return (long)across(len);
}

static long words(size_t count, const long *values)
{
    long *at = across(count * sizeof *at);
    memcpy(at, values, count * sizeof *at);
    return (long)at;
}

static long number(int value)
{
    int *at = across(16);
    *at = value;
    return (long)at;
}

#define WORDS(...) words(sizeof((long[]){__VA_ARGS__}) / sizeof(long), (long[]){__VA_ARGS__})
#define VECTOR(base, len) WORDS(base, len, room(9), 9)

static char dir[] = "/tmp/dispatch-XXXXXX";
static char name_of[64];

static const char *in_dir(const char *name)
{
    snprintf(name_of, sizeof name_of, "%s/%s", dir, name);
    return name_of;
}

static void paths(void)
{
    int file = open(in_dir("file"), O_RDWR | O_CREAT, 0600), here = open(dir, O_RDONLY);
    const char *path = strdup(in_dir("file")), *none = strdup(in_dir("none/none"));
    const int at = AT_FDCWD;
    symlink("file", in_dir("link"));
    ROW(open, DESCRIPTOR, text(path), O_RDONLY);
    ROW(stat, SAME, text(path), room(144));
    ROW(fstat, SAME, file, room(144));
    ROW(lstat, SAME, text(path), room(144));
    ROW(access, SAME, text(path), R_OK);
    ROW(truncate, SAME, text(path), 10);
    ROW(getcwd, SAME, room(4096), 4096);
    ROW(chdir, SAME, text("/"));
    ROW(rename, SAME, text(path), text(path));
    ROW(mkdir, SAME, text(none), 0700);
    ROW(rmdir, SAME, text(none));
    ROW(creat, SAME, text(none), 0600);
    ROW(link, SAME, text(path), text(none));
    ROW(unlink, SAME, text(none));
    ROW(symlink, SAME, text(path), text(none));
    ROW(readlink, SAME, text(in_dir("link")), room(64), 64);
    ROW(chmod, SAME, text(path), 0600);
    ROW(chown, SAME, text(path), -1, -1);
    ROW(lchown, SAME, text(path), -1, -1);
    ROW(utime, SAME, text(path), WORDS(1, 1));
    ROW(utimes, SAME, text(path), WORDS(1, 1, 1, 1));
    ROW(mknod, SAME, text(none), 0600, 0);
    ROW(statfs, SAME, text("/"), room(120));
    ROW(fstatfs, SAME, file, room(120));
    ROW(setxattr, SAME, text(path), text("user.dispatch"), text("value"), 5, 0);
    ROW(lsetxattr, SAME, text(path), text("user.dispatch"), text("value"), 5, 0);
    ROW(fsetxattr, SAME, file, text("user.dispatch"), text("value"), 5, 0);
    ROW(getxattr, SAME, text(path), text("user.dispatch"), room(64), 64);
    ROW(lgetxattr, SAME, text(path), text("user.dispatch"), room(64), 64);
    ROW(fgetxattr, SAME, file, text("user.dispatch"), room(64), 64);
    ROW(listxattr, SAME, text(path), room(64), 64);
    ROW(llistxattr, SAME, text(path), room(64), 64);
    ROW(flistxattr, SAME, file, room(64), 64);
    ROW(removexattr, SAME, text(path), text("user.none"));
    ROW(lremovexattr, SAME, text(path), text("user.none"));
    ROW(fremovexattr, SAME, file, text("user.none"));
    ROW(openat, DESCRIPTOR, at, text(path), O_RDONLY);
    ROW(openat2, DESCRIPTOR, at, text(path), WORDS(0, 0, 0), 24);
    ROW(mkdirat, SAME, at, text(none), 0700);
    ROW(mknodat, SAME, at, text(none), 0600, 0);
    ROW(fchownat, SAME, at, text(path), -1, -1, 0);
    ROW(futimesat, SAME, at, text(path), WORDS(1, 1, 1, 1));
    ROW(newfstatat, SAME, at, text(path), room(144), 0);
    ROW(unlinkat, SAME, at, text(none), 0);
    ROW(renameat, SAME, at, text(path), at, text(path));
    ROW(renameat2, SAME, at, text(path), at, text(path), 0);
    ROW(linkat, SAME, at, text(path), at, text(none), 0);
    ROW(symlinkat, SAME, text(path), at, text(none));
    ROW(readlinkat, SAME, at, text(in_dir("link")), room(64), 64);
    ROW(fchmodat, SAME, at, text(path), 0600);
    ROW(fchmodat2, SAME, at, text(path), 0600, 0);
    ROW(faccessat, SAME, at, text(path), R_OK);
    ROW(faccessat2, SAME, at, text(path), R_OK, 0);
    ROW(utimensat, SAME, at, text(path), WORDS(1, 1, 1, 1), 0);
    ROW(statx, SAME, at, text(path), 0, 0x7ff, room(256));
    ROW(execve, SAME, text(none), WORDS(text("a"), text("b"), 0), WORDS(text("c=d"), 0));
    ROW(execveat, SAME, at, text(none), WORDS(text("a"), text("b"), 0), WORDS(text("c=d"), 0), 0);
    ROW(name_to_handle_at, SAME, at, text(path), room(136), number(0), 0);
    ROW(open_by_handle_at, SAME, at, room(136), 0);
    ROW(chroot, SAME, text(none));
    ROW(pivot_root, SAME, text(none), text(none));
    ROW(mount, SAME, text(none), text(none), text("none"), 0, room(4096));
    ROW(umount2, SAME, text(none), 0);
    ROW(swapon, SAME, text(none), 0);
    ROW(swapoff, SAME, text(none));
    ROW(acct, SAME, text(none));
    ROW(open_tree, DESCRIPTOR, at, text(none), 0);
    ROW(move_mount, SAME, at, text(none), at, text(none), 0);
    ROW(fsopen, SAME, text("none"), 0);
    ROW(fspick, SAME, at, text(none), 0);
    ROW(mount_setattr, SAME, at, text(none), 0, WORDS(0, 0, 0, 0), 32);
    ROW(delete_module, SAME, text("none_none"), 0);
    lseek(here, 0, SEEK_SET);
    ROW(getdents64, SIGN, here, room(4096), 4096);
    lseek(here, 0, SEEK_SET);
    ROW(getdents, SIGN, here, room(4096), 4096);
    ROW(memfd_create, DESCRIPTOR, text("name"), 0);
    int watch = syscall(SYS_inotify_init1, 0);
    ROW(inotify_add_watch, SAME, watch, text(path), 1);
    close(watch);
    close(file);
    close(here);
}

static void files(void)
{
    int file = open(in_dir("data"), O_RDWR | O_CREAT, 0600);
    int other = open(in_dir("other"), O_RDWR | O_CREAT, 0600);
    CHECK(ftruncate(file, 1 << 16) == 0);
    ROW(read, SAME, file, room(5000), 5000);
    ROW(write, SAME, file, room(5000), 5000);
    ROW(pread64, SAME, file, room(5000), 5000, 0);
    ROW(pwrite64, SAME, file, room(5000), 5000, 0);
    ROW(readv, SAME, file, VECTOR(room(5000), 5000), 2);
    ROW(writev, SAME, file, VECTOR(room(5000), 5000), 2);
    ROW(preadv, SAME, file, VECTOR(room(5000), 5000), 2, 0, 0);
    ROW(pwritev, SAME, file, VECTOR(room(5000), 5000), 2, 0, 0);
    ROW(preadv2, SAME, file, VECTOR(room(5000), 5000), 2, 0, 0, 0);
    ROW(pwritev2, SAME, file, VECTOR(room(5000), 5000), 2, 0, 0, 0);
    ROW(sendfile, SAME, other, file, WORDS(0), 100);
    ROW(copy_file_range, SAME, file, WORDS(0), other, WORDS(0), 100, 0);
    ROW(pipe, SAME, room(8));
    ROW(pipe2, SAME, room(8), 0);
    int tube[2];
    CHECK(pipe(tube) == 0);
    ROW(splice, SAME, file, WORDS(0), tube[1], 0, 100, 0);
    ROW(vmsplice, SAME, tube[1], VECTOR(room(100), 100), 2, 0);
    ROW(ioctl, SAME, tube[0], 0x541b, number(0));
    ROW(fcntl, SAME, file, F_GETLK, WORDS(0, 0, 0, 0));
    ROW(cachestat, SAME, file, WORDS(0, 0), room(40), 0);
    ROW(getrandom, SAME, room(5000), 5000, 0);
    ROW(mincore, SAME, (long)arena, PAGE, room(8));
    close(file);
    close(other);
}

static void waits(void)
{
    int tube[2], epoll = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {0}};
    CHECK(pipe(tube) == 0 && write(tube[1], "x", 1) == 1);
    long entry = tube[0] | 1l << 32;
    ROW(poll, SAME, WORDS(entry, entry), 2, 0);
    ROW(ppoll, SAME, WORDS(entry, entry), 2, WORDS(0, 0), WORDS(-1), 8);
    ROW(select, SAME, 500, room(64), room(64), room(64), WORDS(0, 0));
    ROW(pselect6, SAME, 500, room(64), room(64), room(64), WORDS(0, 0), WORDS(WORDS(-1), 8));
    ROW(epoll_ctl, SAME, epoll, EPOLL_CTL_MOD, tube[0], room(12));
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, tube[0], &event) == 0);
    ROW(epoll_wait, SAME, epoll, room(24), 2, 0);
    ROW(epoll_pwait, SAME, epoll, room(24), 2, 0, WORDS(-1), 8);
    ROW(epoll_pwait2, SAME, epoll, room(24), 2, WORDS(0, 0), WORDS(-1), 8);
    ROW(nanosleep, SAME, WORDS(0, 1000), room(16));
    ROW(clock_nanosleep, SAME, CLOCK_MONOTONIC, 0, WORDS(0, 1000), room(16));
    ROW(futex, SAME, number(0), FUTEX_WAIT, 0, WORDS(0, 1000));
    ROW(futex_waitv, SAME, WORDS(0, number(0), 2), 1, 0, WORDS(0, 1000), CLOCK_MONOTONIC);
    ROW(futex_wake, SAME, number(0), -1, 1, 2);
    ROW(futex_wait, SAME, number(0), 0, -1, 2, WORDS(0, 1000), CLOCK_MONOTONIC);
    ROW(futex_requeue, SAME, WORDS(0, number(0), 2, 0, number(0), 2), 0, 0, 0);
    ROW(getitimer, SAME, ITIMER_VIRTUAL, room(32));
    ROW(setitimer, SAME, ITIMER_VIRTUAL, WORDS(0, 0, 0, 0), room(32));
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    ROW(timerfd_settime, SAME, timer, 0, WORDS(0, 0, 0, 0), room(32));
    ROW(timerfd_gettime, SAME, timer, room(32));
    ROW(timer_create, SIGN, CLOCK_MONOTONIC, WORDS(0, SIGEV_NONE * (1l << 32), 0, 0, 0, 0, 0, 0), number(0));
    int id = 0;
    CHECK(syscall(SYS_timer_create, CLOCK_MONOTONIC, 0, &id) == 0);
    ROW(timer_settime, SAME, id, 0, WORDS(0, 0, 0, 0), room(32));
    ROW(timer_gettime, SAME, id, room(32));
    ROW(wait4, SAME, -1, number(0), WNOHANG, room(144));
    ROW(waitid, SAME, P_ALL, 0, room(128), WEXITED | WNOHANG, room(144));
    ROW(rt_sigtimedwait, SAME, WORDS(1), room(128), WORDS(0, 0), 8);
    ROW(rt_sigpending, SAME, room(8), 8);
    ROW(rt_sigqueueinfo, SAME, 0x3fffffff, SIGUSR1, WORDS(0, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    ROW(rt_tgsigqueueinfo, SAME, 0x3fffffff, 1, SIGUSR1,
        WORDS(0, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    ROW(signalfd, DESCRIPTOR, -1, WORDS(0), 8);
    ROW(signalfd4, DESCRIPTOR, -1, WORDS(0), 8, 0);
}

static void sockets(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int ends[2], stream = socket(AF_UNIX, SOCK_STREAM, 0), listener = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    struct sockaddr_un *at = across(sizeof *at);
    *at = name;
    ROW(bind, SAME, listener, (long)at, 2);
    CHECK(listen(listener, 8) == 0);
    at = across(sizeof *at);
    *at = name;
    ROW(connect, SAME, stream, (long)at, sizeof *at);
    ROW(getsockname, SAME, listener, room(110), number(110));
    ROW(getpeername, SAME, ends[0], room(110), number(110));
    ROW(socketpair, SAME, AF_UNIX, SOCK_STREAM, 0, room(8));
    ROW(setsockopt, SAME, stream, SOL_SOCKET, SO_REUSEADDR, number(1), 4);
    ROW(setsockopt, SAME, stream, SOL_SOCKET, SO_ATTACH_FILTER, WORDS(2, WORDS(0, 6)), 16);
    ROW(ioctl, SAME, stream, 0x8912, WORDS(200, room(200)));
    ROW(getsockopt, SAME, stream, SOL_SOCKET, SO_TYPE, number(0), number(4));
    ROW(sendto, SAME, ends[0], room(5000), 5000, 0);
    ROW(recvfrom, SAME, ends[1], room(5000), 2500, MSG_DONTWAIT, room(110), number(110));
    while (recv(ends[1], name_of, 1, MSG_DONTWAIT) >= 0)
        ;
    ROW(sendmsg, SAME, ends[0], WORDS(0, 0, VECTOR(room(5000), 5000), 2, 0, 0, 0));
    ROW(recvmsg, SAME, ends[1], WORDS(room(110), 110, VECTOR(room(5000), 5000), 2, room(64), 64, 0),
        MSG_DONTWAIT);
    ROW(sendmmsg, SAME, ends[0], WORDS(0, 0, VECTOR(room(500), 500), 2, 0, 0, 0, 0), 1, 0);
    ROW(recvmmsg, SAME, ends[1], WORDS(0, 0, VECTOR(room(500), 500), 2, 0, 0, 0, 0), 1, MSG_DONTWAIT,
        WORDS(1, 0));
    fcntl(listener, F_SETFL, O_NONBLOCK);
    ROW(accept, SAME, listener, room(110), number(110));
    ROW(accept4, SAME, listener, room(110), number(110), 0);
}

static void system_state(void)
{
    ROW(uname, SAME, room(390));
    ROW(gettimeofday, SAME, room(16), room(8));
    ROW(settimeofday, SAME, WORDS(-1, -1), 0);
    ROW(time, SIGN, room(8));
    ROW(clock_gettime, SAME, CLOCK_REALTIME, room(16));
    ROW(clock_settime, SAME, CLOCK_MONOTONIC, WORDS(-1, -1));
    ROW(clock_getres, SAME, CLOCK_REALTIME, room(16));
    ROW(adjtimex, SAME, room(208));
    ROW(clock_adjtime, SAME, CLOCK_REALTIME, room(208));
    ROW(getrlimit, SAME, 7, room(16));
    ROW(setrlimit, SAME, 7, WORDS(10, 5));
    ROW(prlimit64, SAME, 0, 7, 0, room(16));
    ROW(getrusage, SAME, 0, room(144));
    ROW(sysinfo, SAME, room(112));
    ROW(times, SIGN, room(32));
    ROW(getgroups, SAME, 1024, room(4096));
    ROW(setgroups, SAME, 1 << 30, room(16));
    ROW(getresuid, SAME, room(4), room(4), room(4));
    ROW(getresgid, SAME, room(4), room(4), room(4));
    ROW(capget, SAME, WORDS(0x20080522), room(24));
    ROW(capset, SAME, WORDS(0), room(24));
    ROW(ustat, SAME, -1, room(32));
    ROW(sysfs, SAME, 1, text("none"));
    ROW(sched_getparam, SAME, 0, room(4));
    ROW(sched_setparam, SAME, 0, number(0));
    ROW(sched_setscheduler, SAME, 0, 0, number(0));
    ROW(sched_rr_get_interval, SAME, 0, room(16));
    ROW(sched_getaffinity, SAME, 0, 128, room(128));
    ROW(sched_setaffinity, SAME, 0, 128, WORDS(3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    ROW(sched_getattr, SAME, 0, room(64), 56, 0);
    ROW(sched_setattr, SAME, 0, WORDS(48, 0, 0, 0, 0, 0), 0);
    ROW(prctl, SAME, 16, room(16));
    ROW(arch_prctl, SAME, 0x1003, room(8));
    ROW(getcpu, SIGN, room(4), room(4));
    ROW(get_robust_list, SAME, 0, room(8), room(8));
    ROW(sethostname, SAME, room(100), 100);
    ROW(setdomainname, SAME, room(100), 100);
    ROW(syslog, SIGN, 3, room(1000), 1000);
    ROW(get_mempolicy, SAME, room(4), room(128), 1024, 0, 0);
    ROW(set_mempolicy, SAME, 0, room(128), 0);
    ROW(mbind, SAME, (long)arena, PAGE, 0, room(128), 0, 0);
    ROW(migrate_pages, SAME, 0, 1024, room(128), room(128));
    ROW(move_pages, SAME, 0, 2, WORDS(0, 0), room(8), room(8), 0);
    ROW(shmctl, SAME, 0, 3, room(128));
    ROW(msgctl, SAME, 0, 3, room(128));
    ROW(semctl, SAME, 0, 0, 3, room(128));
    int queue = syscall(SYS_msgget, 0, 0600), set = syscall(SYS_semget, 0, 1, 0600);
    ROW(msgsnd, SAME, queue, WORDS(1, 0, 0, 0), 24, 0);
    ROW(msgrcv, SAME, queue, room(32), 24, 0, 04000);
    ROW(semop, SAME, set, room(6), 1);
    ROW(semtimedop, SAME, set, room(6), 1, WORDS(0, 0));
    syscall(SYS_msgctl, queue, 0, 0);
    syscall(SYS_semctl, set, 0, 0);
    ROW(mq_open, SAME, text("none"), 0);
    ROW(mq_unlink, SAME, text("none"));
    ROW(mq_timedsend, SAME, -1, room(16), 16, 0, WORDS(0, 0));
    ROW(mq_timedreceive, SAME, -1, room(16), 16, room(4), WORDS(0, 0));
    ROW(mq_notify, SAME, -1, room(64));
    ROW(mq_getsetattr, SAME, -1, room(64), room(64));
    ROW(add_key, SIGN, text("user"), text("none"), room(16), 16, -3);
    ROW(request_key, SAME, text("user"), text("none"), text("none"), 0);
    ROW(keyctl, SAME, 10, -3, text("user"), text("none"), 0);
    ROW(process_vm_readv, SAME, getpid(), VECTOR(room(100), 100), 2, WORDS((long)&failures, 4), 1, 0);
    ROW(process_vm_writev, SAME, getpid(), VECTOR(room(4), 4), 1, WORDS((long)&name_of, 4), 1, 0);
    ROW(perf_event_open, DESCRIPTOR, WORDS(1l | 64l << 32, 0, 0, 0, 0, 0, 0, 0), 0, -1, -1, 0);
    ROW(seccomp, SAME, 2, 0, number(0));
    ROW(seccomp, SAME, 1, 0, WORDS(2, WORDS(0, 0xffff)));
    ROW(bpf, SAME, 99, room(64), 64);
    ROW(process_madvise, SAME, -1, WORDS((long)arena, PAGE), 1, 20, 0);
    ROW(pidfd_send_signal, SAME, -1, 0, WORDS(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), 0);
    ROW(landlock_create_ruleset, DESCRIPTOR, WORDS(1), 8, 0);
    ROW(landlock_add_rule, SAME, -1, 1, room(64), 0);
    ROW(quotactl_fd, SAME, -1, 0, 0, room(256));
}

static void table(void)
{
    arena_start(256);
    copy = malloc(arena_pages * PAGE);
    CHECK(mkdtemp(dir));
    for (size_t i = 0; i < arena_pages * PAGE; i += PAGE)
        arena[i] = 0;
    files();
    waits();
    sockets();
    system_state();
    paths();
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", dir);
    CHECK(system(command) == 0 && failures == 0);
}

/* More at once than is brought at once. */
enum { LARGE = 6 << 20 };
static int tubes[2];

static void *drain(void *unused)
{
    static char into[1 << 16];
    size_t sum = 0;
    ssize_t got;
    (void)unused;
    while ((got = read(tubes[0], into, sizeof into)) > 0)
        for (ssize_t i = 0; i < got; i++)
            sum += (unsigned char)into[i];
    return (void *)sum;
}

static size_t sum_of_pages(unsigned char *at, size_t len)
{
    size_t sum = 0;
    for (size_t i = 0; i < len; i++)
        sum += at[i];
    return sum;
}

static void large_vectors(void)
{
    arena_start(LARGE / PAGE + 16);
    unsigned char *memory = whole(LARGE);
    for (size_t i = 0; i < LARGE; i++)
        memory[i] = i >> 9;
    size_t sum = sum_of_pages(memory, LARGE), third = LARGE / 3;
    struct iovec vector[3] = {{memory, third}, {memory + third, third}, {memory + 2 * third, third}};
    FILE *file = tmpfile();
    CHECK(file);
    away();
    /* A file takes and gives all of it. */
    CHECK(writev(fileno(file), vector, 3) == LARGE);
    CHECK(lseek(fileno(file), 0, SEEK_CUR) == LARGE);
    CHECK(lseek(fileno(file), 0, SEEK_SET) == 0);
    memset(memory, 0, LARGE);
    away();
    CHECK(readv(fileno(file), vector, 3) == LARGE && sum_of_pages(memory, LARGE) == sum);
    memset(memory, 0, LARGE);
    away();
    CHECK(preadv(fileno(file), vector, 3, PAGE) == LARGE - (long)PAGE);
    CHECK(memory[0] == PAGE >> 9 && memory[LARGE - PAGE - 1] == (unsigned char)((LARGE - 1) >> 9));
    CHECK(pwritev(fileno(file), vector, 3, 0) == LARGE);
    CHECK(preadv2(fileno(file), vector, 3, 0, 0) == LARGE);
    CHECK(lseek(fileno(file), 0, SEEK_SET) == 0);
    CHECK(preadv2(fileno(file), vector, 3, -1, 0) == LARGE);
    CHECK(lseek(fileno(file), 0, SEEK_CUR) == LARGE);
    CHECK(readv(-1, vector, 3) == -1 && errno == EBADF);
    vector[0].iov_len = -1;
    CHECK(readv(fileno(file), vector, 3) == -1 && errno == EINVAL);
    vector[0].iov_len = third;
    /* A stream takes some of it, in order. */
    for (size_t i = 0; i < LARGE; i++)
        memory[i] = i >> 9;
    for (int by_message = 0; by_message < 2; by_message++) {
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, tubes) == 0);
        pthread_t reader;
        CHECK(pthread_create(&reader, 0, drain, 0) == 0);
        for (size_t done = 0; done < LARGE;) {
            struct iovec rest = {memory + done, LARGE - done};
            struct msghdr message = {.msg_iov = &rest, .msg_iovlen = 1};
            away();
            ssize_t sent = by_message ? sendmsg(tubes[1], &message, 0) : writev(tubes[1], &rest, 1);
            CHECK(sent > 0);
            done += sent;
        }
        close(tubes[1]);
        void *got;
        CHECK(pthread_join(reader, &got) == 0 && (size_t)got == sum);
        close(tubes[0]);
    }
}

/* A missing name has no length: the kernel does not look at it. */
static void no_name(void)
{
    arena_start(16);
    unsigned char *memory = whole(PAGE);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, tubes) == 0);
    for (int round = 0; round < 10; round++) {
        struct iovec vector = {memory, 64};
        struct msghdr message = {.msg_namelen = 0x7fffffff, .msg_iov = &vector, .msg_iovlen = 1};
        memset(memory, round, PAGE);
        away();
        CHECK(write(tubes[1], "0123456789", 10) == 10);
        CHECK(recvmsg(tubes[0], &message, 0) == 10 && !memcmp(memory, "0123456789", 10));
        CHECK(memory[10] == round);
    }
    close(tubes[0]), close(tubes[1]);
}

const struct test call_tests[] = {
    {"table", table}, {"large_vectors", large_vectors}, {"no_name", no_name}, {0, 0}};
