/* Reads a CUDA graph into words and builds one from words. executor/materialize/words.py has the layout.

   Declares what it needs of the driver's interface itself, so that no header has to be installed. */

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KERNEL = 0, MEMCPY = 1, MEMSET = 2, EMPTY = 5 };
enum { GRAPH_HEAD = 2, NODE_HEAD = 1, KERNEL_HEAD = 7, MEMCPY_WORDS = 25, MEMSET_WORDS = 5, ATTRIBUTE_WORDS = 9 };
enum { FIRST_ATTRIBUTE = 1, LAST_ATTRIBUTE = 14 };
enum { END = 0, BUFFER = 1, BUFFER_SIZE = 2 };
enum { NO_ROOM = -1, NOT_THERE = -2, DAMAGED = -3 };
enum { MARKED_WORDS = 1 << 14 };
#define MARK 0x5a5a5a5a5a5a5a5aul /* no address, nor two sizes that are likely */
enum { OUT_OF_MEMORY = 2 }; /* as the driver says it */

typedef struct {
    void *function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
    void *kernel, *context;
} KernelParams;

static int (*get_nodes)(void *, void **, size_t *);
static int (*get_type)(void *, int *);
static int (*get_edges)(void *, void **, void **, void *, size_t *);
static int (*get_kernel)(void *, KernelParams *);
static int (*get_memcpy)(void *, void *);
static int (*get_memset)(void *, void *);
static int (*get_attribute)(void *, int, void *);
static int (*set_attribute)(void *, int, const void *);
static int (*param_info)(void *, size_t, size_t *, size_t *);
static int (*function_of)(void **, void *);
static int (*create)(void **, unsigned);
static int (*destroy)(void *);
static int (*add_kernel)(void **, void *, const void *, size_t, const KernelParams *);
static int (*add_memcpy)(void **, void *, const void *, size_t, const void *, void *);
static int (*add_memset)(void **, void *, const void *, size_t, const void *, void *);
static int (*add_empty)(void **, void *, const void *, size_t);
static int (*add_edges)(void *, void *const *, void *const *, const void *, size_t);
static int (*instantiate)(void **, void *, unsigned long long);
static int (*current_context)(void **);

int gp_open(const char *library)
{
    void *driver = dlopen(library, RTLD_NOW);
    if (!driver)
        return NOT_THERE;
    struct { void **slot; const char *name; } wanted[] = {
        {(void **)&get_nodes, "cuGraphGetNodes"},
        {(void **)&get_type, "cuGraphNodeGetType"},
        {(void **)&get_edges, "cuGraphGetEdges_v2"},
        {(void **)&get_kernel, "cuGraphKernelNodeGetParams_v2"},
        {(void **)&get_memcpy, "cuGraphMemcpyNodeGetParams"},
        {(void **)&get_memset, "cuGraphMemsetNodeGetParams"},
        {(void **)&get_attribute, "cuGraphKernelNodeGetAttribute"},
        {(void **)&set_attribute, "cuGraphKernelNodeSetAttribute"},
        {(void **)&param_info, "cuFuncGetParamInfo"},
        {(void **)&function_of, "cuKernelGetFunction"},
        {(void **)&create, "cuGraphCreate"},
        {(void **)&destroy, "cuGraphDestroy"},
        {(void **)&add_kernel, "cuGraphAddKernelNode_v2"},
        {(void **)&add_memcpy, "cuGraphAddMemcpyNode"},
        {(void **)&add_memset, "cuGraphAddMemsetNode"},
        {(void **)&add_empty, "cuGraphAddEmptyNode"},
        {(void **)&add_edges, "cuGraphAddDependencies_v2"},
        {(void **)&instantiate, "cuGraphInstantiateWithFlags"},
        {(void **)&current_context, "cuCtxGetCurrent"},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!(*wanted[i].slot = dlsym(driver, wanted[i].name)))
            return NOT_THERE;
    return 0;
}

typedef struct {
    uint64_t *words;
    long used, room;
} Words;

/* The next `count` words, zeroed, or NULL where there is no room: the length goes on being counted. */
static uint64_t *take(Words *out, long count)
{
    uint64_t *at = out->words + out->used;
    out->used += count;
    if (out->used > out->room)
        return NULL;
    memset(at, 0, count * sizeof *at);
    return at;
}

static uint64_t pair(uint64_t low, uint64_t high) { return (low & 0xffffffffu) | high << 32; }

static long index_of(void *function, uint64_t *functions, long *count, long room)
{
    for (long i = *count - 1; i >= 0; i--)
        if (functions[i] == (uint64_t)function)
            return i;
    if (*count >= room)
        return NO_ROOM;
    functions[*count] = (uint64_t)function;
    return (*count)++;
}

/* Bytes of a function's parameters as they lie one behind the other. */
static size_t params_size(void *function)
{
    size_t offset, size, end = 0;
    for (size_t i = 0; param_info(function, i, &offset, &size) == 0; i++)
        end = offset + size;
    return end;
}

static void copy_params(const KernelParams *params, char *into)
{
    size_t offset, size;
    for (size_t i = 0; param_info(params->function, i, &offset, &size) == 0; i++)
        memcpy(into + offset, params->params[i], size);
}

static int packed_params(void **extra, const void **buffer, size_t *size)
{
    *buffer = NULL, *size = 0;
    for (; extra && *extra != (void *)END; extra += 2) {
        if (*extra == (void *)BUFFER)
            *buffer = extra[1];
        else if (*extra == (void *)BUFFER_SIZE)
            *size = *(size_t *)extra[1];
    }
    return *buffer != NULL;
}

static int read_attributes(void *node, Words *out, uint64_t *head)
{
    int count = 0;
    for (int id = FIRST_ATTRIBUTE; id <= LAST_ATTRIBUTE; id++) {
        uint64_t value[8] = {0}, none[8] = {0};
        if (get_attribute(node, id, value) || !memcmp(value, none, sizeof value))
            continue;
        uint64_t *at = take(out, ATTRIBUTE_WORDS);
        if (at) {
            at[0] = id;
            memcpy(at + 1, value, sizeof value);
        }
        count++;
    }
    if (head)
        head[5] |= (uint64_t)count << 32;
    return count;
}

static int read_kernel(void *node, Words *out, uint64_t *functions, long *count, long room)
{
    KernelParams params = {0};
    int error = get_kernel(node, &params);
    if (!error && !params.function)
        error = function_of(&params.function, params.kernel);
    if (error)
        return error;
    const void *buffer;
    size_t size;
    int packed = packed_params(params.extra, &buffer, &size);
    if (!packed)
        size = params.params ? params_size(params.function) : 0;
    long index = index_of(params.function, functions, count, room);
    if (index < 0)
        return NO_ROOM;
    uint64_t *head = take(out, KERNEL_HEAD - NODE_HEAD);
    uint64_t *into = take(out, (size + 7) / 8);
    if (head) {
        head -= NODE_HEAD;
        head[1] = index;
        head[2] = pair(params.grid[0], params.grid[1]);
        head[3] = pair(params.grid[2], params.block[0]);
        head[4] = pair(params.block[1], params.block[2]);
        head[5] = params.shared;
        head[6] = pair(size, packed);
    }
    if (into && packed)
        memcpy(into, buffer, size);
    else if (into && size)
        copy_params(&params, (char *)into);
    read_attributes(node, out, head);
    return 0;
}

static int read_node(void *node, Words *out, uint64_t *functions, long *count, long room)
{
    int type, error = get_type(node, &type);
    if (error)
        return error;
    long start = out->used;
    uint64_t *head = take(out, NODE_HEAD), *body;
    if (type == KERNEL)
        error = read_kernel(node, out, functions, count, room);
    else if (type == MEMCPY && (body = take(out, MEMCPY_WORDS)))
        error = get_memcpy(node, body);
    else if (type == MEMSET && (body = take(out, MEMSET_WORDS)))
        error = get_memset(node, body);
    if (head)
        head[0] = pair(type, out->used - start);
    return error;
}

typedef struct {
    void *node;
    uint64_t number;
} Numbered;

static int by_node(const void *one, const void *other)
{
    uintptr_t a = (uintptr_t)((const Numbered *)one)->node, b = (uintptr_t)((const Numbered *)other)->node;
    return (a > b) - (a < b);
}

static uint64_t number_of(void *node, const Numbered *nodes, size_t count)
{
    Numbered key = {node, 0};
    const Numbered *found = bsearch(&key, nodes, count, sizeof *nodes, by_node);
    return found ? found->number : count;
}

static int read_edges(void *graph, Words *out, void **nodes, size_t num_nodes, size_t *num_edges)
{
    int error = get_edges(graph, NULL, NULL, NULL, num_edges);
    if (error || !*num_edges)
        return error;
    size_t count = *num_edges;
    void **from = malloc(2 * count * sizeof *from);
    uint64_t *data = calloc(count, sizeof *data);
    Numbered *numbered = malloc((num_nodes + 1) * sizeof *numbered);
    error = from && data && numbered ? get_edges(graph, from, from + count, data, num_edges) : OUT_OF_MEMORY;
    if (!error) {
        for (size_t i = 0; i < num_nodes; i++)
            numbered[i] = (Numbered){nodes[i], i};
        qsort(numbered, num_nodes, sizeof *numbered, by_node);
    }
    uint64_t *at = take(out, 2 * count);
    for (size_t i = 0; !error && at && i < count; i++) {
        at[2 * i] =
            pair(number_of(from[i], numbered, num_nodes), number_of(from[count + i], numbered, num_nodes));
        at[2 * i + 1] = data[i];
    }
    free(from), free(data), free(numbered);
    return error;
}

/* Writes `graph` to `words`. Returns how many words it has, which may be more than `room`, and then
   nothing can be relied on; or NO_ROOM for functions; or 1,000,000,000 and more: an error of the driver. */
long gp_read(void *graph, uint64_t *words, long room, uint64_t *functions, long *num_functions, long function_room)
{
    Words out = {words, 0, room};
    size_t num_nodes = 0, num_edges = 0;
    int error = get_nodes(graph, NULL, &num_nodes);
    if (error)
        return 1000000000L + error;
    void **nodes = malloc((num_nodes + 1) * sizeof *nodes);
    error = !nodes ? OUT_OF_MEMORY : num_nodes ? get_nodes(graph, nodes, &num_nodes) : 0;
    uint64_t *head = take(&out, GRAPH_HEAD);
    for (size_t i = 0; !error && i < num_nodes; i++)
        error = read_node(nodes[i], &out, functions, num_functions, function_room);
    if (!error)
        error = read_edges(graph, &out, nodes, num_nodes, &num_edges);
    free(nodes);
    if (head)
        head[0] = num_nodes, head[1] = num_edges;
    return error == NO_ROOM ? NO_ROOM : error ? 1000000000L + error : out.used;
}

static int build_kernel(void **node, void *graph, uint64_t *at, long length, const uint64_t *functions, long count)
{
    size_t size = (uint32_t)at[6];
    long num_attributes = at[5] >> 32, params = (size + 7) / 8;
    if (length != KERNEL_HEAD + params + num_attributes * ATTRIBUTE_WORDS || at[1] >= (uint64_t)count ||
        !functions[at[1]])
        return DAMAGED;
    void *extra[] = {(void *)BUFFER, at + KERNEL_HEAD, (void *)BUFFER_SIZE, &size, (void *)END};
    KernelParams kernel = {
        .function = (void *)functions[at[1]],
        .grid = {(uint32_t)at[2], at[2] >> 32, (uint32_t)at[3]},
        .block = {at[3] >> 32, (uint32_t)at[4], at[4] >> 32},
        .shared = (uint32_t)at[5],
        .extra = size ? extra : NULL,
    };
    int error = add_kernel(node, graph, NULL, 0, &kernel);
    at += KERNEL_HEAD + params;
    for (long i = 0; !error && i < num_attributes; i++, at += ATTRIBUTE_WORDS)
        error = at[0] < FIRST_ATTRIBUTE || at[0] > LAST_ATTRIBUTE ? DAMAGED
                                                                  : set_attribute(*node, (int)at[0], at + 1);
    return error;
}

static int build_node(
    void **node, void *graph, uint64_t *at, long length, const uint64_t *functions, long count, void *context)
{
    switch ((uint32_t)at[0]) {
    case KERNEL:
        return length < KERNEL_HEAD ? DAMAGED : build_kernel(node, graph, at, length, functions, count);
    case MEMCPY:
        return length != NODE_HEAD + MEMCPY_WORDS ? DAMAGED : add_memcpy(node, graph, NULL, 0, at + 1, context);
    case MEMSET:
        return length != NODE_HEAD + MEMSET_WORDS ? DAMAGED : add_memset(node, graph, NULL, 0, at + 1, context);
    case EMPTY:
        return length != NODE_HEAD ? DAMAGED : add_empty(node, graph, NULL, 0);
    }
    return DAMAGED;
}

/* Every edge becomes a full one, whatever its data allow. With the programmatic edges that cuBLAS makes in
   front of its reductions, graphs were recorded that are right, and built that raced (H200, driver 580). */
static int build_edges(void *graph, const uint64_t *at, void **nodes, long num_nodes, long count)
{
    if (!count)
        return 0;
    void **from = malloc(2 * count * sizeof *from);
    int error = from ? 0 : OUT_OF_MEMORY;
    for (long i = 0; !error && i < count; i++) {
        uint32_t source = (uint32_t)at[2 * i], target = at[2 * i] >> 32;
        if (source >= num_nodes || target >= num_nodes) {
            error = DAMAGED;
            break;
        }
        from[i] = nodes[source], from[count + i] = nodes[target];
    }
    if (!error)
        error = add_edges(graph, from, from + count, NULL, count);
    free(from);
    return error;
}

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec * 1e-9;
}

/* Leaves MARK all over the stack below the caller, which calls after it find in what they leave uninitialised. */
void gp_mark_stack(void)
{
    volatile uint64_t room[MARKED_WORDS];
    for (int i = 0; i < MARKED_WORDS; i++)
        room[i] = MARK;
}

/* Copies `words` into `into` and adds to the word at each of `positions` the start of its region. Returns 0,
   or DAMAGED for a position or region that is not there. */
int gp_place(
    uint64_t *into, const uint64_t *words, long length, const int64_t *positions, const int64_t *regions, long count,
    const uint64_t *starts, long num_regions)
{
    memcpy(into, words, length * sizeof *into);
    for (long i = 0; i < count; i++) {
        if (positions[i] < 0 || positions[i] >= length || regions[i] < 0 || regions[i] >= num_regions)
            return DAMAGED;
        into[positions[i]] += starts[regions[i]];
    }
    return 0;
}

/* Builds the graph in `words` with `functions`, and instantiates it into `executable`. Adds to `seconds`
   what either took. Returns 0, DAMAGED, or the driver's error. */
int gp_build(
    uint64_t *words, long length, const uint64_t *functions, long num_functions, void **executable, double *seconds)
{
    double began = now();
    if (length < GRAPH_HEAD || words[0] > (uint64_t)length || words[1] > (uint64_t)length)
        return DAMAGED;
    long num_nodes = words[0], num_edges = words[1], at = GRAPH_HEAD;
    void *graph = NULL, *context = NULL, **nodes = malloc((num_nodes + 1) * sizeof *nodes);
    int error = nodes ? current_context(&context) : OUT_OF_MEMORY;
    if (!error)
        error = create(&graph, 0);
    for (long i = 0; !error && i < num_nodes; i++) {
        long size = at < length ? (long)(words[at] >> 32) : 0;
        if (size < NODE_HEAD || size > length - at)
            error = DAMAGED;
        else
            error = build_node(nodes + i, graph, words + at, size, functions, num_functions, context);
        at += size;
    }
    if (!error)
        error = length - at == 2 * num_edges ? build_edges(graph, words + at, nodes, num_nodes, num_edges) : DAMAGED;
    double is_built = now();
    if (!error)
        error = instantiate(executable, graph, 0);
    seconds[0] += is_built - began, seconds[1] += now() - is_built;
    if (graph)
        destroy(graph);
    free(nodes);
    return error;
}
