/* The thread that memspill adds to a process has no more rights than the process, whatever that gives up; and
 * the process may do what it might do without that thread. For root. Each line that begins with BAD is a
 * failure.
 *
 * usage: privileges DIRECTORY: an empty one, on which file systems can be mounted.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int bad;
static void check(int good, const char *what) {
    if (!good) bad++, printf("BAD %s (errno %d)\n", what, errno);
    fflush(stdout);
}

/* A field of the extra thread's status; empty where there is no such thread. */
static const char *evictor(const char *field) {
    static char line[512];
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        char path[300];
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "r");
        int ours = 0;
        while (status && fgets(line, sizeof line, status)) {
            if (!strcmp(line, "Name:\tmemspill\n")) ours = 1;
            if (ours && !strncmp(line, field, strlen(field))) {
                fclose(status), closedir(tasks);
                line[strcspn(line, "\n")] = 0;
                return line + strlen(field) + 1;
            }
        }
        if (status) fclose(status);
    }
    if (tasks) closedir(tasks);
    return "";
}

static void is_without_rights(const char *when) {
    char what[200];
    const char *sets[] = {"CapInh:", "CapPrm:", "CapEff:", "CapAmb:"};
    for (int i = 0; i < 4; i++) {
        snprintf(what, sizeof what, "%s %s: %s", sets[i], when, evictor(sets[i]));
        check(!strcmp(evictor(sets[i]), "0000000000000000"), what);
    }
    snprintf(what, sizeof what, "ids %s: %s", when, evictor("Uid:"));
    check(strstr(evictor("Uid:"), "4000000000\t4000000000\t4000000000\t4000000000") != NULL, what);
    check(strstr(evictor("Gid:"), "4000000000\t4000000000\t4000000000\t4000000000") != NULL, "gids");
    check(strspn(evictor("Groups:"), " \t") == strlen(evictor("Groups:")), "groups");
    check(!strcmp(evictor("Seccomp:"), "2"), "no filter");
    check(prctl(PR_GET_DUMPABLE) == 1, "not dumpable");
}

/* More than the budget, twice. */
static void work(void) {
    const size_t len = 100UL << 20;
    unsigned long *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < len / 8; i += 256) p[i] = i * 31;
    int wrong = 0;
    for (size_t i = 0; i < len / 8; i += 256) wrong |= p[i] != i * 31;
    check(!wrong, "BAD PAGE");
    munmap(p, len);
}

/* Allows everything but these two, which end the process. */
static long filter(unsigned flags, int by_prctl) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_capset, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    if (by_prctl) return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

static int child_works(void) {
    pid_t child = fork();
    if (child == 0) work(), _exit(bad != 0);
    int status = -1;
    waitpid(child, &status, 0);
    if (status) printf("a child ended with %#x\n", status);
    return status == 0;
}

/* Each in a process of its own. */
static void in_child(void (*body)(void)) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) body(), exit(bad != 0);
    int status = -1;
    waitpid(child, &status, 0);
    check(status == 0, "a part has failed");
}

static void namespaces(void) {
    int own = open("/proc/self/ns/mnt", O_RDONLY);
    check(setns(own, CLONE_NEWNS) == 0, "setns(CLONE_NEWNS)");
    check(unshare(CLONE_FS) == 0, "unshare(CLONE_FS)");
    check(unshare(CLONE_NEWNS) == 0, "unshare(CLONE_NEWNS)");
    check(unshare(CLONE_NEWUTS | CLONE_NEWIPC) == 0, "unshare(CLONE_NEWUTS | CLONE_NEWIPC)");
    work();
    is_without_rights("in other namespaces");
}

static void sandbox_of_all(void) {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    check(filter(SECCOMP_FILTER_FLAG_TSYNC, 0) == 0, "TSYNC of a single thread");
    work();
    check(child_works(), "the child of a filtered process");
}

static void sandbox(void) {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    check(filter(0, 1) == 0, "PR_SET_SECCOMP");
    work();
    check(child_works(), "the child of a filtered process");
}

static void drop(void) {
    const gid_t groups[] = {4, 24};
    check(setgroups(2, groups) == 0, "setgroups");
    check(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0, "setresuid");
    prctl(PR_SET_DUMPABLE, 1);
    work();
    is_without_rights("after setresuid");
    check(child_works(), "a child without root");
}

int main(int argc, char **argv) {
    if (argc == 3) {
        /* Started with a file system as its working directory, which can be unmounted when it leaves. */
        check(chdir("/") == 0 && umount(argv[1]) == 0, "umount of where the program was");
        work();
        return bad != 0;
    }
    is_without_rights("at first");
    check(mount("none", argv[1], "tmpfs", 0, "size=1m") == 0 && chdir(argv[1]) == 0, "mount");
    pid_t child = fork();
    if (child == 0) execl("/proc/self/exe", argv[0], argv[1], "again", NULL), _exit(9);
    check(chdir("/") == 0, "chdir");
    int status = -1;
    waitpid(child, &status, 0);
    check(status == 0, "the one that unmounts");
    umount2(argv[1], MNT_DETACH);
    in_child(namespaces);
    in_child(sandbox_of_all);
    in_child(sandbox);
    in_child(drop);
    work();
    is_without_rights("in the end");
    if (!bad) puts("no rights");
    return bad != 0;
}
