/* Runs one test of the dispatch, which is named, or lists their names: main.c of the program that
 * ../dispatch.rs drives. "ok" is the last line of a test that holds. */
#include "pager.h"

static const struct test *const all[] = {lost_tests, call_tests, signal_tests, thread_tests};
static const char *const kinds[] = {"lost", "call", "signal", "thread"};

int main(int argc, char **argv)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    for (size_t kind = 0; kind < sizeof all / sizeof all[0]; kind++)
        for (const struct test *test = all[kind]; test->name; test++) {
            if (argc < 2) {
                printf("%s %s\n", kinds[kind], test->name);
            } else if (!strcmp(argv[1], test->name)) {
                if (argc > 2 && !strcmp(argv[2], "armed"))
                    CHECK(is_armed());
                test->run();
                puts("ok");
                return 0;
            }
        }
    return argc < 2 ? 0 : 2;
}
