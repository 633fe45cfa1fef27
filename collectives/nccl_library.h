/* The functions of NCCL that sherd uses. The library is opened at run time, so that one binary runs
 * with NCCL and without it. */
#ifndef SHERDI_COLLECTIVES_NCCL_LIBRARY_H
#define SHERDI_COLLECTIVES_NCCL_LIBRARY_H

#include <nccl.h>

/* Each is nccl<name>, as nccl.h declares it. */
#define NCCL_FUNCTIONS(_)                                                                          \
    _(GetVersion)                                                                                  \
    _(GetUniqueId)                                                                                 \
    _(CommInitRankConfig)                                                                          \
    _(CommGetAsyncError)                                                                           \
    _(CommFinalize)                                                                                \
    _(CommDestroy)                                                                                 \
    _(CommAbort)                                                                                   \
    _(CommCount)                                                                                   \
    _(CommUserRank)                                                                                \
    _(CommCuDevice)                                                                                \
    _(GetErrorString)                                                                              \
    _(GetLastError)                                                                                \
    _(GroupStart)                                                                                  \
    _(GroupEnd)                                                                                    \
    _(Send)                                                                                        \
    _(Recv)                                                                                        \
    _(AllGather)                                                                                   \
    _(AllReduce)                                                                                   \
    _(ReduceScatter)

typedef struct nccl_api {
    int version;
#define MEMBER(name) __typeof__(nccl##name) *name;
    NCCL_FUNCTIONS(MEMBER)
#undef MEMBER
    /* Newer than the oldest header that sherd supports; NULL where the library lacks them. */
    ncclResult_t (*CommRegister)(const ncclComm_t comm, void *memory, size_t len, void **handle);
    ncclResult_t (*CommDeregister)(const ncclComm_t comm, void *handle);
    ncclResult_t (*AlltoAll)(const void *send, void *recv, size_t count, ncclDataType_t type,
                             ncclComm_t comm, cudaStream_t stream);
    ncclResult_t (*CommWindowRegister)(ncclComm_t comm, void *memory, size_t len, void **window,
                                       int flags);
    ncclResult_t (*CommWindowDeregister)(ncclComm_t comm, void *window);
    ncclResult_t (*MemAlloc)(void **out, size_t len);
    ncclResult_t (*MemFree)(void *memory);
} nccl_api;

/** One for the process; constant once sherdi_nccl_version has returned a version. */
extern nccl_api sherdi_nccl_api;

#endif
