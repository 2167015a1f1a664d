// A daemon outlives the command that starts it: two forks, a session of its own, no descriptor of before. It
// fills memory, checks it again and again, and says at the end of FILE that it has come to its end.
//   daemon MIB CHECKS FILE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void fork_and_leave(void) {
    pid_t pid = fork();
    if (pid != 0) _exit(pid < 0 ? 2 : 0);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    size_t bytes = (size_t)atol(argv[1]) << 20;
    int checks = atoi(argv[2]);
    fork_and_leave();
    setsid();
    fork_and_leave();
    umask(0);
    for (int fd = 0; fd < 1024; fd++) close(fd);
    open("/dev/null", O_RDWR);
    if (dup(0) != 1 || dup(0) != 2) return 2;
    const char *said = "ended well";
    char *memory = malloc(bytes);
    for (size_t i = 0; i < bytes; i += 4096) memory[i] = (char)(i >> 12);
    for (int check = 0; check < checks; check++) {
        usleep(50000);
        for (size_t i = 0; i < bytes; i += 4096)
            if (memory[i] != (char)(i >> 12)) said = "wrong memory";
    }
    int file = open(argv[3], O_CREAT | O_WRONLY | O_APPEND, 0666);
    dprintf(file, "%s\n", said);
    return 0;
}
