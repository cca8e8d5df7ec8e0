// Package regions knows the memory that clients of this host share with the server: what
// is registered, whose it is, how much one may have, and who is using it. It opens files
// and never maps or reads one: workers do that (infer.Regions), and a client that shrinks
// its memory hits a worker at most.
//
// A region belongs to who registered it: the principal, or else the user of this host who
// called, by the kernel's word, or else everybody on this host who showed nothing. To others
// it is as if it did not exist, and they can't register its memory. A request that names
// regions holds references to them from Attach until nobody reads or writes for it any more:
// they hang on its counted memory, which the front end and every batch with the request hold.
// Unregister takes the name away at once, and waits for the references.
//
// Front ends call it for registering and for each request with regions; metrics ask for
// figures. All methods may be called by any number of goroutines. What decides, table, is
// plain data under mu; no file is opened and no worker asked under it. An unregistered
// region has a goroutine of its own until workers have let it go; Close waits for those.
package regions
