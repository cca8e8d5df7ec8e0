// Package shm is the memory that a gateway and the workers of its host share, without
// a name in any file system: arenas for tensors and descriptors, and the lane that
// carries descriptors of batches from one process to the other.
//
// An Arena is a memfd that one side allocates from and the other reads. A Lane is a
// memfd with one mailbox for each model instance (gateway to worker), a completion
// ring (worker to gateway), a release ring and a ring of answers to calls (gateway to
// worker). Both processes map them; the worker is not trusted: whatever the gateway reads from shared memory is
// checked, and its own bookkeeping (allocator, positions) lives in private memory.
//
// Arenas are safe for concurrent use, under one short lock. Which methods of a Lane
// may be called by whom stands with each. No lock of this package is held while
// another is taken, and nothing here starts a goroutine.
//
// The package is for Linux and needs no cgo.
package shm
