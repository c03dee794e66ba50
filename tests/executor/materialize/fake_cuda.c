/* A small stand-in for the CUDA driver's library: graphs are lists of nodes in memory, kernels are calls of
   one function that a test sets. Functions that begin with fake_ are for tests, all others are the driver's. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { KERNEL = 0, MEMCPY = 1, MEMSET = 2, EMPTY = 5 };
enum { INVALID_VALUE = 1, INVALID_CONTEXT = 201, INVALID_HANDLE = 400 };
enum { NUM_ATTRIBUTES = 15, VALUE_BYTES = 64, MEMCPY_BYTES = 200, MEMSET_BYTES = 40, MAX_PARAMS = 64 };
enum { MAX_DYNAMIC_SHARED = 8, FUNCTION_ATTRIBUTES = 16, MOST_SHARED = 232448 };
enum { DEVICE = 2, RANGE_START = 11, RANGE_SIZE = 12, CAPTURING = 1 };
enum { MAX_RANGES = 256, MAX_STREAMS = 8 };

typedef struct {
    char name[256];
    size_t num_params, offsets[MAX_PARAMS], sizes[MAX_PARAMS];
    int attributes[FUNCTION_ATTRIBUTES];
} Function;

typedef struct {
    Function *function;
} Kernel;

typedef struct {
    void *function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
    void *kernel, *context;
} KernelParams;

typedef struct Graph Graph;

typedef struct {
    Graph *graph;
    int type;
    KernelParams kernel;
    void *params[MAX_PARAMS], *extra[5];
    size_t size;
    char *raw, attributes[NUM_ATTRIBUTES][VALUE_BYTES], is_set[NUM_ATTRIBUTES];
    char body[MEMCPY_BYTES];
} Node;

typedef struct {
    Node *from, *to;
    uint64_t data;
} Edge;

struct Graph {
    Node **nodes;
    Edge *edges;
    size_t num_nodes, num_edges;
};

static char failing[64];
static int calls_before, failing_with;
static _Atomic long num_graphs, num_executables; /* graphs are built on several threads */
static struct { uint64_t start, size; } ranges[MAX_RANGES];
static int num_ranges;
static struct { void *stream, *graph; } captures[MAX_STREAMS];
static void (*on_launch)(void *function, const void *params, size_t size);

/* The call of `name` after the next `before` ones answers `error`, once. */
void fake_fail(const char *name, int before, int error)
{
    strncpy(failing, name, sizeof failing - 1);
    calls_before = before, failing_with = error;
}

static int fails(const char *name)
{
    if (strcmp(name, failing) || calls_before-- > 0)
        return 0;
    failing[0] = 0;
    return failing_with;
}

#define ANSWER_IF_IT_FAILS()              \
    do {                                  \
        int error = fails(__func__);      \
        if (error)                        \
            return error;                 \
    } while (0)

long fake_live_graphs(void) { return num_graphs; }
long fake_live_executables(void) { return num_executables; }
void fake_on_launch(void (*call)(void *, const void *, size_t)) { on_launch = call; }

void *fake_function(const char *name, size_t num_params, const size_t *offsets, const size_t *sizes)
{
    Function *made = calloc(1, sizeof *made);
    strncpy(made->name, name, sizeof made->name - 1);
    made->num_params = num_params;
    memcpy(made->offsets, offsets, num_params * sizeof *offsets);
    memcpy(made->sizes, sizes, num_params * sizeof *sizes);
    return made;
}

void fake_set_function(Function *function, int attribute, int value) { function->attributes[attribute] = value; }

void *fake_kernel(void *function)
{
    Kernel *made = calloc(1, sizeof *made);
    made->function = function;
    return made;
}

/* A node of a type that is never rebuilt. */
void *fake_other_node(Graph *graph, int type);

void fake_range(uint64_t start, uint64_t size)
{
    if (num_ranges < MAX_RANGES)
        ranges[num_ranges].start = start, ranges[num_ranges++].size = size;
}

void fake_forget_ranges(void) { num_ranges = 0; }

void fake_capture(void *stream, void *graph)
{
    for (int i = 0; i < MAX_STREAMS; i++)
        if (captures[i].stream == stream || !captures[i].stream) {
            captures[i].stream = stream, captures[i].graph = graph;
            return;
        }
}

/* Functions and contexts */

int cuCtxGetCurrent(void **context)
{
    ANSWER_IF_IT_FAILS();
    *context = &num_graphs;
    return 0;
}

int cuFuncGetName(const char **name, Function *function)
{
    ANSWER_IF_IT_FAILS();
    *name = function->name;
    return 0;
}

int cuFuncGetParamInfo(Function *function, size_t index, size_t *offset, size_t *size)
{
    if (index >= function->num_params)
        return INVALID_VALUE;
    *offset = function->offsets[index];
    if (size)
        *size = function->sizes[index];
    return 0;
}

int cuFuncGetAttribute(int *value, int attribute, Function *function)
{
    ANSWER_IF_IT_FAILS();
    if (attribute < 0 || attribute >= FUNCTION_ATTRIBUTES)
        return INVALID_VALUE;
    *value = function->attributes[attribute];
    return 0;
}

int cuFuncSetAttribute(Function *function, int attribute, int value)
{
    ANSWER_IF_IT_FAILS();
    if (attribute != MAX_DYNAMIC_SHARED || value < 0 || value > MOST_SHARED)
        return INVALID_VALUE;
    function->attributes[attribute] = value;
    return 0;
}

int cuKernelGetFunction(void **function, Kernel *kernel)
{
    ANSWER_IF_IT_FAILS();
    if (!kernel)
        return INVALID_HANDLE;
    *function = kernel->function;
    return 0;
}

int cuPointerGetAttribute(void *data, int attribute, uint64_t pointer)
{
    for (int i = 0; i < num_ranges; i++)
        if (pointer - ranges[i].start < ranges[i].size) {
            if (attribute != RANGE_START && attribute != RANGE_SIZE)
                return INVALID_VALUE;
            *(uint64_t *)data = attribute == RANGE_START ? ranges[i].start : ranges[i].size;
            return 0;
        }
    return INVALID_VALUE;
}

int cuStreamGetCaptureInfo_v2(
    void *stream, int *status, uint64_t *id, void **graph, const void ***dependencies, size_t *num_dependencies)
{
    ANSWER_IF_IT_FAILS();
    (void)id, (void)dependencies, (void)num_dependencies;
    *status = 0;
    for (int i = 0; i < MAX_STREAMS; i++)
        if (captures[i].stream == stream && captures[i].graph) {
            *status = CAPTURING;
            if (graph)
                *graph = captures[i].graph;
        }
    return 0;
}

/* Graphs */

int cuGraphCreate(Graph **graph, unsigned flags)
{
    ANSWER_IF_IT_FAILS();
    if (flags)
        return INVALID_VALUE;
    *graph = calloc(1, sizeof **graph);
    num_graphs++;
    return 0;
}

int cuGraphDestroy(Graph *graph)
{
    if (!graph)
        return INVALID_VALUE;
    for (size_t i = 0; i < graph->num_nodes; i++) {
        Node *node = graph->nodes[i];
        for (size_t k = 0; k < MAX_PARAMS; k++)
            free(node->params[k]);
        free(node->raw), free(node);
    }
    free(graph->nodes), free(graph->edges), free(graph);
    num_graphs--;
    return 0;
}

int cuGraphGetNodes(Graph *graph, Node **nodes, size_t *count)
{
    ANSWER_IF_IT_FAILS();
    if (nodes)
        for (size_t i = 0; i < *count && i < graph->num_nodes; i++)
            nodes[i] = graph->nodes[i];
    *count = graph->num_nodes;
    return 0;
}

int cuGraphNodeGetType(Node *node, int *type)
{
    ANSWER_IF_IT_FAILS();
    *type = node->type;
    return 0;
}

int cuGraphGetEdges_v2(Graph *graph, Node **from, Node **to, uint64_t *data, size_t *count)
{
    ANSWER_IF_IT_FAILS();
    if (from)
        for (size_t i = 0; i < *count && i < graph->num_edges; i++)
            from[i] = graph->edges[i].from, to[i] = graph->edges[i].to, data[i] = graph->edges[i].data;
    *count = graph->num_edges;
    return 0;
}

static Node *add(Graph *graph, int type)
{
    Node *node = calloc(1, sizeof *node);
    node->type = type, node->graph = graph;
    graph->nodes = realloc(graph->nodes, (graph->num_nodes + 1) * sizeof *graph->nodes);
    graph->nodes[graph->num_nodes++] = node;
    return node;
}

void *fake_other_node(Graph *graph, int type) { return add(graph, type); }

static size_t params_bytes(const Function *function)
{
    size_t last = function->num_params;
    return last ? function->offsets[last - 1] + function->sizes[last - 1] : 0;
}

static int packed(void **extra, void **buffer, size_t *size)
{
    *buffer = NULL, *size = 0;
    for (; extra && *extra; extra += 2) {
        if (*extra == (void *)1)
            *buffer = extra[1];
        else if (*extra == (void *)2)
            *size = *(size_t *)extra[1];
    }
    return *buffer != NULL;
}

int cuGraphAddKernelNode_v2(
    Node **made, Graph *graph, const void *dependencies, size_t num_dependencies, const KernelParams *params)
{
    ANSWER_IF_IT_FAILS();
    Function *function = params->function ? params->function : params->kernel ? ((Kernel *)params->kernel)->function : NULL;
    void *buffer;
    size_t size;
    int is_packed = packed(params->extra, &buffer, &size);
    if (!function || dependencies || num_dependencies || params->shared > (unsigned)function->attributes[MAX_DYNAMIC_SHARED])
        return INVALID_VALUE;
    if (is_packed ? size != params_bytes(function) : (!params->params && function->num_params))
        return INVALID_VALUE;
    Node *node = *made = add(graph, KERNEL);
    node->kernel = *params;
    node->kernel.params = node->kernel.extra = NULL;
    node->size = params_bytes(function);
    node->raw = calloc(1, node->size + 1);
    if (is_packed) {
        memcpy(node->raw, buffer, size);
        void *extra[] = {(void *)1, node->raw, (void *)2, &node->size, NULL};
        memcpy(node->extra, extra, sizeof extra);
        node->kernel.extra = node->extra;
        return 0;
    }
    for (size_t i = 0; i < function->num_params; i++) {
        node->params[i] = malloc(function->sizes[i]);
        memcpy(node->params[i], params->params[i], function->sizes[i]);
        memcpy(node->raw + function->offsets[i], params->params[i], function->sizes[i]);
    }
    if (function->num_params)
        node->kernel.params = node->params;
    return 0;
}

int cuGraphKernelNodeGetParams_v2(Node *node, KernelParams *params)
{
    ANSWER_IF_IT_FAILS();
    if (node->type != KERNEL)
        return INVALID_VALUE;
    *params = node->kernel;
    return 0;
}

/* An attribute that was never set reads as zeros, but events cannot be asked for. */
int cuGraphKernelNodeGetAttribute(Node *node, int attribute, void *value)
{
    if (attribute < 1 || attribute >= NUM_ATTRIBUTES || (attribute == 7 && !node->is_set[attribute]))
        return INVALID_VALUE;
    memcpy(value, node->attributes[attribute], VALUE_BYTES);
    return 0;
}

int cuGraphKernelNodeSetAttribute(Node *node, int attribute, const void *value)
{
    ANSWER_IF_IT_FAILS();
    if (attribute < 1 || attribute >= NUM_ATTRIBUTES)
        return INVALID_VALUE;
    memcpy(node->attributes[attribute], value, VALUE_BYTES);
    node->is_set[attribute] = 1;
    return 0;
}

int cuGraphAddMemcpyNode(
    Node **made, Graph *graph, const void *dependencies, size_t num_dependencies, const void *params, void *context)
{
    ANSWER_IF_IT_FAILS();
    if (!context || dependencies || num_dependencies)
        return INVALID_CONTEXT;
    memcpy((*made = add(graph, MEMCPY))->body, params, MEMCPY_BYTES);
    return 0;
}

int cuGraphMemcpyNodeGetParams(Node *node, void *params)
{
    ANSWER_IF_IT_FAILS();
    memcpy(params, node->body, MEMCPY_BYTES);
    return 0;
}

int cuGraphAddMemsetNode(
    Node **made, Graph *graph, const void *dependencies, size_t num_dependencies, const void *params, void *context)
{
    ANSWER_IF_IT_FAILS();
    if (!context || dependencies || num_dependencies)
        return INVALID_CONTEXT;
    memcpy((*made = add(graph, MEMSET))->body, params, MEMSET_BYTES);
    return 0;
}

int cuGraphMemsetNodeGetParams(Node *node, void *params)
{
    ANSWER_IF_IT_FAILS();
    memcpy(params, node->body, MEMSET_BYTES);
    return 0;
}

int cuGraphAddEmptyNode(Node **made, Graph *graph, const void *dependencies, size_t num_dependencies)
{
    ANSWER_IF_IT_FAILS();
    if (dependencies || num_dependencies)
        return INVALID_VALUE;
    *made = add(graph, EMPTY);
    return 0;
}

int cuGraphAddDependencies_v2(Graph *graph, Node **from, Node **to, const uint64_t *data, size_t count)
{
    ANSWER_IF_IT_FAILS();
    for (size_t i = 0; i < count; i++) {
        if (from[i]->graph != graph || to[i]->graph != graph || from[i] == to[i])
            return INVALID_VALUE;
        for (size_t k = 0; k < graph->num_edges; k++)
            if (graph->edges[k].from == from[i] && graph->edges[k].to == to[i])
                return INVALID_VALUE;
        graph->edges = realloc(graph->edges, (graph->num_edges + 1) * sizeof *graph->edges);
        graph->edges[graph->num_edges++] = (Edge){from[i], to[i], data ? data[i] : 0};
    }
    return 0;
}

static size_t index_of(const Graph *graph, const Node *node)
{
    size_t i = 0;
    while (graph->nodes[i] != node)
        i++;
    return i;
}

/* An order of the nodes that the edges allow, the last node first wherever they leave a choice; -1 for none. */
static int ordered(const Graph *graph, size_t *order)
{
    size_t *waits_for = calloc(graph->num_nodes + 1, sizeof *waits_for), placed = 0;
    for (size_t i = 0; i < graph->num_edges; i++)
        waits_for[index_of(graph, graph->edges[i].to)]++;
    while (placed < graph->num_nodes) {
        size_t next = graph->num_nodes;
        while (next > 0 && waits_for[next - 1])
            next--;
        if (!next--)
            break;
        waits_for[next] = SIZE_MAX;
        order[placed++] = next;
        for (size_t i = 0; i < graph->num_edges; i++)
            if (graph->edges[i].from == graph->nodes[next])
                waits_for[index_of(graph, graph->edges[i].to)]--;
    }
    free(waits_for);
    return placed == graph->num_nodes ? 0 : -1;
}

static Graph *copy_of(const Graph *graph)
{
    Graph *made = calloc(1, sizeof *made);
    num_graphs++;
    for (size_t i = 0; i < graph->num_nodes; i++) {
        Node *from = graph->nodes[i], *to = add(made, from->type);
        *to = *from;
        to->graph = made;
        if (!from->raw)
            continue;
        memcpy(to->raw = malloc(from->size + 1), from->raw, from->size);
        if (from->kernel.extra)
            to->extra[1] = to->raw, to->extra[3] = &to->size, to->kernel.extra = to->extra;
        Function *function = from->kernel.function;
        for (size_t k = 0; from->kernel.params && function && k < function->num_params; k++)
            memcpy(to->params[k] = malloc(function->sizes[k]), from->params[k], function->sizes[k]);
        to->kernel.params = from->kernel.params ? to->params : NULL;
    }
    made->edges = malloc((graph->num_edges + 1) * sizeof *made->edges);
    for (size_t i = 0; i < graph->num_edges; i++)
        made->edges[made->num_edges++] = (Edge){
            made->nodes[index_of(graph, graph->edges[i].from)],
            made->nodes[index_of(graph, graph->edges[i].to)],
            graph->edges[i].data,
        };
    return made;
}

/* An executable graph is a copy that is counted apart. */
int cuGraphInstantiateWithFlags(Graph **executable, Graph *graph, unsigned long long flags)
{
    ANSWER_IF_IT_FAILS();
    size_t *order = malloc((graph->num_nodes + 1) * sizeof *order);
    int error = flags || ordered(graph, order) ? INVALID_VALUE : 0;
    free(order);
    if (error)
        return error;
    *executable = copy_of(graph);
    num_graphs--, num_executables++;
    return 0;
}

int cuGraphExecDestroy(Graph *executable)
{
    num_executables--, num_graphs++;
    return cuGraphDestroy(executable);
}

static void copy_memory(const uint64_t *params)
{
    if ((uint32_t)params[4] == DEVICE && (uint32_t)params[15] == DEVICE)
        memmove((void *)params[17], (void *)params[6], params[22] * params[23] * params[24]);
}

int cuGraphLaunch(Graph *executable, void *stream)
{
    ANSWER_IF_IT_FAILS();
    (void)stream;
    size_t *order = malloc((executable->num_nodes + 1) * sizeof *order);
    ordered(executable, order);
    for (size_t i = 0; i < executable->num_nodes; i++) {
        Node *node = executable->nodes[order[i]];
        uint64_t body[MEMCPY_BYTES / 8];
        memcpy(body, node->body, sizeof body);
        if (node->type == KERNEL && on_launch)
            on_launch(node->kernel.function, node->raw, node->size);
        else if (node->type == MEMCPY)
            copy_memory(body);
        else if (node->type == MEMSET)
            memset((void *)body[0], (int)body[2], body[3] * body[4]);
    }
    free(order);
    return 0;
}
