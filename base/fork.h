/* Descriptors that a child must not hold when the program forks without exec, as the data loaders of Python do: what
 * tells others of this process's end, and its locks of files, would else wait for the child's. Where they were, a child has /dev/null, so that
 * their numbers mean nothing else there.
 *
 * The list is the process's, as descriptors are, and the one thing that can know of a fork that somebody else makes. */
#ifndef SHERDI_BASE_FORK_H
#define SHERDI_BASE_FORK_H

/** Until sherdi_fork_exclude no child is forked: the caller opens a descriptor meanwhile, and does not wait. */
void sherdi_fork_hold(void);
/** Ends that. Children will not have `fd`, or what errno says is why there is none (-1). Returns `fd`; -1 (ENOMEM),
 *  closed, when there is no room to note it. */
int sherdi_fork_exclude(int fd);
/** Ends the same: the caller has closed `fd` meanwhile. */
void sherdi_fork_forget(int fd);
/** Closes `fd`, noted or not. */
void sherdi_fork_close(int fd);

#endif
