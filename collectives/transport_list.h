/* The transports, a line each, the best first where a program names none. transport.h declares them from here. */
SHERDI_TRANSPORT(sherdi_transport_self)
SHERDI_TRANSPORT(sherdi_transport_threads)
SHERDI_TRANSPORT(sherdi_transport_shm)
SHERDI_TRANSPORT(sherdi_transport_mpi)
SHERDI_TRANSPORT(sherdi_transport_nccl)
SHERDI_TRANSPORT(sherdi_transport_sim)
