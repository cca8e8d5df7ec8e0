// Package workers is the worker process: it owns a device, loads model versions with
// the backends it was given, and executes batches on their instances.
//
// A gateway speaks to it by the service of proto/worker, over an inherited socket, a
// named one, or over TCP with mutual TLS. One of the same host shares memory with it too:
// batches then arrive in a mailbox for each instance and results leave through the
// completion ring (package workers/shm); everybody else uses the Execute stream. What
// lies between the two and a backend is one execution, which fits backend.Batch.
//
// Tensors may lie in clients' memory too (package workers/internal/region): a gateway of the
// same host passes its descriptors over a socket of their own, and batches name them by slot.
// What is wrong with such memory is the error of the request that names it, and of no other.
//
// On a GPU a backend may take tensors in its memory (device.go, backend.Memory): those of clients'
// regions and resident ones, which are outputs that stay there for another batch of the connection.
// Others get copies in host memory.
//
// A batch that its backend keeps (kept.go) goes on beside the next one of its instance, with an
// execution of its own, until its last request is answered; keepWatch (keepwatch.go) tells
// backends of cancellations and fails what is never answered.
//
// Every instance has a goroutine that is locked to its thread for life. It waits on
// its own mailbox or queue; no dispatcher stands between. Handles of models belong to
// the connection that loaded them, and are unloaded when it ends.
//
// Locks, none held while another is taken but in this order: connection.mu, Worker.mu; and
// keptBatch.mu before those of opens, keepWatch and the transport. No backend is called under
// any.
package workers
