/* Builds damaged graphs with native.c until its time is up: words cut short, flipped, and replaced.

   Arguments: the fake driver's library, a file of words, how many graphs to try, what to begin with.
   Says how often building succeeded, was refused, and failed in the driver. */

#include <stdio.h>

#include NATIVE

static uint64_t state;

static uint64_t drawn(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 20) % below;
}

static void damage(uint64_t *words, long length)
{
    static const uint64_t telling[] = {0, 1, 2, 3, 5, 7, 0x7fffffff, 0xffffffff, 1ull << 32, 1ull << 63, ~0ull};
    for (uint64_t times = drawn(3); times < 3; times++) {
        uint64_t *word = words + drawn(length < 8 || drawn(2) ? length : 8);
        switch (drawn(3)) {
        case 0:
            *word ^= 1ull << drawn(64);
            break;
        case 1:
            *word = telling[drawn(sizeof telling / sizeof *telling)];
            break;
        default:
            *word = (*word & 0xffffffffu) | telling[drawn(sizeof telling / sizeof *telling)] << 32;
        }
    }
}

int main(int argc, char **argv)
{
    void *driver = argc == 5 ? dlopen(argv[1], RTLD_NOW) : NULL;
    FILE *file = driver ? fopen(argv[2], "rb") : NULL;
    if (!file || gp_open(argv[1]))
        return 2;
    void *(*function)(const char *, size_t, const size_t *, const size_t *);
    void (*set_function)(void *, int, int);
    int (*destroy_executable)(void *);
    long (*graphs)(void), (*executables)(void);
    *(void **)&function = dlsym(driver, "fake_function");
    *(void **)&set_function = dlsym(driver, "fake_set_function");
    *(void **)&destroy_executable = dlsym(driver, "cuGraphExecDestroy");
    *(void **)&graphs = dlsym(driver, "fake_live_graphs");
    *(void **)&executables = dlsym(driver, "fake_live_executables");
    uint64_t original[4096], functions[3];
    long length = fread(original, 8, 4096, file), results[3] = {0};
    size_t offset = 0, size = 16;
    for (int i = 0; i < 3; i++) {
        functions[i] = (uint64_t)function("kernel", 1, &offset, &size);
        set_function((void *)functions[i], 8, 1 << 16);
    }
    state = strtoul(argv[4], NULL, 10);
    for (long left = strtol(argv[3], NULL, 10); left > 0; left--) {
        long own = drawn(4) ? length : (long)drawn(length + 1);
        uint64_t *words = malloc(own * 8 + 1);
        memcpy(words, original, own * 8);
        if (own)
            damage(words, own);
        void *executable = NULL;
        double seconds[2] = {0};
        int error = gp_build(words, own, functions, 3, &executable, seconds);
        results[error == 0 ? 0 : error == DAMAGED ? 1 : 2]++;
        if (!error)
            destroy_executable(executable);
        free(words);
    }
    printf("%ld %ld %ld %ld\n", results[0], results[1], results[2], graphs() + executables());
    return 0;
}
