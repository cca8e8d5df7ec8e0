// Package region is clients' memory in a worker: a table of regions by slot, and guarded
// access to them.
//
// A client may change, shrink or truncate its memory at any time. A region is mapped where
// touching memory that is not there any more can be survived (guard.c, in builds with cgo:
// a handler of SIGBUS puts empty memory in its place and marks the region); in other builds
// it is read and written through its descriptor. A region that turned out to be smaller is
// bad, for good: whoever used it asks Err afterwards and fails the requests that named it.
//
// A Table belongs to one gateway's connection and is safe for concurrent use. Who uses a
// region holds a reference on it (Acquire, Release); Close waits for the last one.
package region
