// Package repository owns the models: it finds them in folders, completes and checks
// their configs, loads their versions into workers, and hands them out to requests.
// The pipeline calls Acquire and a Model's methods; gateway/control calls the queries;
// `sluice check` uses Folders, Open and Plan without loading anything.
//
// A version is built whole (config completed, instances made by the worker, scheduler
// started), then swapped in, then the one before is retired: it takes no new requests,
// waits for those that hold it, drains its scheduler and frees its memory. Its states
// are
//
//	UNKNOWN → LOADING → READY → UNLOADING → UNAVAILABLE "unloaded"
//	              └→ UNAVAILABLE with the reason
//
// Acquire and everything that only reads use an immutable view of all models, which is
// replaced as a whole when a state changes, so requests take no lock.
//
// A load (change) compares the folder with what serves and builds only what differs;
// LoadAll, load calls (Load) and polls (Run) all end there. Loads and unloads of one
// model take turns; an ensemble's load holds its turn while its steps have theirs. An unload,
// and a load of something else, ends the loads of its model that came before (pendingLoads).
// Load threads are shared among callers (threads); work on one that can't be interrupted is
// abandoned when its load ends (threadWork). What is on its way out is retired in
// the background, and waited for by Close. What belongs to a load besides its versions,
// the run of its agents and the files that came with a call, is a lease, which ends with
// the last of them.
//
// Locks: a turn is taken before all else and held while workers are waited for, then a load
// thread. Repository.mu guards states and the making of views, Model.mu orders the news about
// its instances; neither is held while a worker is waited for. The mutexes of turns,
// loadThreads and pendingLoads are held alone, the last one also within Repository.mu.
package repository
