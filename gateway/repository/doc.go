// Package repository owns the models: it finds them in folders, completes and checks
// their configs, loads their versions into workers, and hands them out to requests.
// The pipeline calls Acquire and a Model's methods; gateway/control calls the queries;
// `sluice check` uses Find, Open and Plan without loading anything.
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
// Locks: Repository.mu guards states and the making of views; Model.mu orders the news
// about its instances. Neither is held while a worker or another lock is waited for.
package repository
