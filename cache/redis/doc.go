// Package redis keeps the response cache's entries in Redis, shared between gateways
// and kept over restarts. Versions are known by the hash of their content, so gateways
// that load different things never share an answer.
//
// A lookup is one GET with a budget of a few milliseconds; whatever goes wrong with it
// is a miss. When too much goes wrong a breaker (breaker.go) stops asking for a while.
// Fills wait in a bounded queue for one goroutine that pipelines them; one that finds
// no room is dropped. A value carries its version, its key and a checksum, and one that
// is not exactly ours is a miss.
package redis
