// Package client is the gateway's side of all workers: it starts and supervises those
// of this host, joins those of others, loads model versions onto their instances, and
// executes batches.
//
// A local worker is a child process with six inherited descriptors: 3 is its end of a
// socket pair that gRPC runs on, 4 the request arena, 5 its response arena, 6 and 7 its
// lane and the lane's bell, 8 its end of the socket that descriptors of clients' memory
// come through. No name exists in any file system. A worker that somebody
// else started, in another container say, and that listens on a Unix socket is sent 4 to
// 8 over that socket, and differs in nothing else. The end of the socket, or of the process,
// is the worker's death: what it had in flight fails with infer.ErrWorkerLost, another
// one is started with back-off, and loads what was loaded. A gateway's death closes
// the socket too, so that its workers end by themselves.
//
// Beside the configured workers there may be processes for one backend's models, or one model's
// (processes.go). What one process answers others of the host read without a copy (peers.go).
//
// Batches go through the lane to local workers (laneLink), through the gRPC stream to
// others (streamLink); an executor hides which. Workers is started by the gateway's
// root package and used by the repository; schedulers see infer.Executor only.
//
// Workers fits infer.Regions: clients' memory is opened by every worker of this host, again
// by one that is restarted before it executes anything, and named in batches by its slot.
// Who changes the regions of a worker's sessions holds its turn.
//
// Each worker has one goroutine (supervise) and, while it is connected, one that reads
// completions, one that watches, and those that reload. All of them are waited for by
// Close. Lock order: processes.mu, group.notify, worker.mu, executor.mu; nothing but the callback
// Spec.Changed runs under the first, and no callback under the others.
package client
