/* What modules add to worlds: a table or a function of each, or NULL in a build without the
 * module. */
#include "sherd_build.h"

/* The operations on the memory of devices. */
#ifdef SHERDI_MODULE_DEVICES
extern const struct world_device_ops sherdi_world_devices;
#define SHERDI_WORLD_DEVICES (&sherdi_world_devices)
#else
#define SHERDI_WORLD_DEVICES NULL
#endif

/* The kind of device that parameters ask for; and worlds of threads, whose parameters the environment
 * may change. */
#ifdef SHERDI_MODULE_TRANSPORTS
sherd_status sherdi_world_backend_kind(const sherd_world_params *params, const char **out);
#define SHERDI_WORLD_BACKEND_KIND sherdi_world_backend_kind
#define SHERDI_WORLD_THREADS      sherd_world_threads_with
#else
#define SHERDI_WORLD_BACKEND_KIND NULL
#define SHERDI_WORLD_THREADS      sherdi_threads_create
#endif

/* Makes calls overlap with their caller. */
#ifdef SHERDI_MODULE_OVERLAP
sherd_status sherdi_world_overlapped(sherd_world *world);
#define SHERDI_WORLD_OVERLAP sherdi_world_overlapped
#else
#define SHERDI_WORLD_OVERLAP NULL
#endif

/* Ends a meeting to which a rank comes without a call of its own (CALL_REGROUP). */
#ifdef SHERDI_MODULE_STEPS
struct sherdi_peers;
sherd_status sherdi_peers_regrouped(struct sherdi_peers *peers);
#define SHERDI_PEERS_REGROUPED sherdi_peers_regrouped
#else
#define SHERDI_PEERS_REGROUPED NULL
#endif

/* Calls of ranks of one host on memory that is not the world's, and their broadcasts. */
#ifdef SHERDI_MODULE_BOUNCE
extern const struct peers_bounce_ops sherdi_peers_bounce;
sherd_status sherdi_peers_broadcast(sherd_world *world, void *data, size_t len_bytes, int root);
#define SHERDI_PEERS_BOUNCE    (&sherdi_peers_bounce)
#define SHERDI_PEERS_BROADCAST sherdi_peers_broadcast
#else
#define SHERDI_PEERS_BOUNCE    NULL
#define SHERDI_PEERS_BROADCAST NULL
#endif

/* The slot tell_ending of ranks that are threads. */
#ifdef SHERDI_MODULE_LISTENERS
void sherdi_threads_tell_ending(sherd_world *world, uint64_t key, int is_agreed);
#define SHERDI_THREADS_TELL_ENDING sherdi_threads_tell_ending
#else
#define SHERDI_THREADS_TELL_ENDING NULL
#endif

/* Checks the arguments of a call. */
#ifdef SHERDI_MODULE_DEBUG
struct world_call;
sherd_status sherdi_world_call_checked(const sherd_world *world, const struct world_call *call);
#define SHERDI_WORLD_CALL_CHECK sherdi_world_call_checked
#else
#define SHERDI_WORLD_CALL_CHECK(world, call) SHERD_OK
#endif
