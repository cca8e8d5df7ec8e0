package local

import (
	"encoding/binary"
	"testing"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/cache/cachetest"
)

// Keys of one process are sums that know arithmetic: requests that count up have keys that
// do, by a secret step. Whoever tries steps must find none that stays in a shard.
func TestShardsCanNotBeSteered(t *testing.T) {
	const trials, requests = 400, 128
	c := New(Config{Size: maxShards * perShard})
	s := cachetest.Subject("m", "1", 1)
	worst := 0
	for trial := range trials {
		keys := cache.NewKeys()
		shards := map[*shard]int{}
		data := make([]byte, 64)
		for i := range requests {
			binary.LittleEndian.PutUint64(data[8*(trial%8):], uint64(i)<<(trial%57))
			q := keys.Query(s, cachetest.Request(data...))
			n := c.shard(&q.Key)
			q.Done()
			shards[n]++
			worst = max(worst, shards[n])
		}
	}
	t.Logf("at worst %d of %d in a shard", worst, requests)
	if worst > requests/6 {
		t.Errorf("%d of %d requests went to one of %d shards", worst, requests, len(c.shards))
	}
}
