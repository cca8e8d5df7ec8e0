package infer

// CacheStatus says how the response cache took part in an answer.
type CacheStatus uint8

// The cache states. CacheNone is that of models without a response cache.
const (
	CacheNone      CacheStatus = iota
	CacheHit                   // answered from the cache
	CacheCollapsed             // answered with the result of an identical request in flight
	CacheMiss                  // executed
	CacheBypass                // executed; the cache was not asked
)

// String is the state in words; "" for CacheNone.
func (s CacheStatus) String() string {
	return [...]string{"", "hit", "collapsed", "miss", "bypass"}[s]
}

// Header is the value of the Cache-Status header; "" for CacheNone.
// Source: RFC 9211.
func (s CacheStatus) Header() string {
	return [...]string{"", "sluice; hit", "sluice; fwd=miss; collapsed", "sluice; fwd=miss", "sluice; fwd=bypass"}[s]
}
