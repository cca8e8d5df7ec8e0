// Package local keeps the response cache's entries in this process: a map in shards,
// bounded in bytes, that evicts by SIEVE (Zhang and others, NSDI 2024). It starts no
// goroutine. A lookup takes one shard's lock for a map access and sets a bit; entries
// are plain memory, so a hit copies nothing and an evicted entry lives on for who has
// it. What has expired counts as missing, and is freed when it is looked up or when its
// turn for eviction comes.
package local
