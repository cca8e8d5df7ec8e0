// Package cache is the response cache: what makes two requests the same, what is kept
// of an answer, and how a request is served from it. The levels that keep answers are
// cache/local (this process) and cache/redis (shared); both fit Cache.
//
// Step is what gateway/pipeline calls for every request to a model with
// response_cache. It looks the request up, else has it executed once for all identical
// requests that wait meanwhile, and keeps a successful answer. Faults of a level are
// misses; they never fail a request.
//
// # What makes requests the same
//
// The canonical form (canonical.go) of a request is unambiguous: every part is preceded
// by its length. It holds model, version, the content of the loaded version, the scope
// of the caller, every input's name, datatype, shape and bytes, the requested outputs
// with their parameters, and all of the request's parameters but id, priority and
// timeout, which don't change an answer. Answers are kept as the backend gave them,
// before classes and the client's shapes are made of them; so one entry serves every
// class count, and classification is not part of the form.
//
// Two hashes are made of it. In this process a keyed universal hash over the input bytes
// and, under another key, over the form with its output, 256 bits (hash.go); the keys are
// random, are made when the process starts and never leave it, so nobody can look for two
// requests with one hash. Between processes SHA-256 all the way.
//
// Everything exported is safe for concurrent use unless it says otherwise. Locks are
// those of shards and are held for map operations only.
package cache
