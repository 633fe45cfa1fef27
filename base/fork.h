/* Descriptors that a child must not hold when the program forks without exec, as the data loaders
 * of Python do. Otherwise other processes would learn of this process's end, and get its locks of
 * files, only when the child ends too. In the child /dev/null takes the place of these descriptors,
 * so that their numbers refer to nothing else there.
 *
 * The list belongs to the process, as descriptors do. It is global because nothing else can learn
 * of a fork that somebody else makes. */
#ifndef SHERDI_BASE_FORK_H
#define SHERDI_BASE_FORK_H

/** Prevents forks until sherdi_fork_exclude or sherdi_fork_forget. Meanwhile the caller opens or
 *  closes a descriptor, and must not wait. */
void sherdi_fork_hold(void);
/** Allows forks again. Children will not have `fd`; -1: opening failed, and errno is preserved.
 *  Returns `fd`; or -1 (ENOMEM), with `fd` closed, when there is no memory to note it. */
int sherdi_fork_exclude(int fd);
/** Allows forks again, after the caller has closed `fd`. */
void sherdi_fork_forget(int fd);
/** Closes `fd`, whether it is in the list or not. */
void sherdi_fork_close(int fd);

#endif
