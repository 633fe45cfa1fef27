/* The transports, one per line, in the order of preference when a program names none. transport.h
 * declares them from this list. */
SHERDI_TRANSPORT(sherdi_transport_self)
SHERDI_TRANSPORT(sherdi_transport_threads)
SHERDI_TRANSPORT(sherdi_transport_shm)
SHERDI_TRANSPORT(sherdi_transport_mpi)
SHERDI_TRANSPORT(sherdi_transport_nccl)
SHERDI_TRANSPORT(sherdi_transport_sim)
