package cloud

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"gocloud.dev/blob"
)

// Whatever happens to the bucket, the cache and the server, a view that was synced
// without an error is what the bucket held: when it could be asked, now, and else when
// it last could.
func TestRandomLives(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			r := newRig(t)
			r.cfg.Keep = time.Nanosecond
			s := r.store()
			last := map[string]string{} // what the view must hold when the cloud is away
			known := false              // there was a sync
			r.put("models/m0/f", "first")
			for step := range 80 {
				rotten := false // an object is, and the bucket is there to mend it
				key := fmt.Sprintf("models/m%d/%d/f%d", rng.IntN(3), 1+rng.IntN(2), rng.IntN(2))
				switch rng.IntN(7) {
				case 0, 1:
					r.put(key, fmt.Sprintf("%d-%d", step, rng.IntN(3)))
				case 2:
					if _, ok := r.data[key]; ok {
						r.remove(key)
					}
				case 3:
					r.away.Store(!r.away.Load())
					if r.away.Load() { // connections that are open break, too
						r.each((*blob.Bucket).Close)
					}
				case 4:
					must(t, s.Close(t.Context()))
					s = r.store()
				case 5:
					if all := r.objects(); len(all) > 0 && !r.away.Load() && rng.IntN(3) == 0 {
						damaged := all[rng.IntN(len(all))]
						must(t, os.Remove(damaged)) // a new inode: what is served stays whole
						must(t, os.WriteFile(damaged, []byte("rotten"), 0o600))
						must(t, s.Close(t.Context()))
						s, rotten = r.store(), true
					}
				}
				if !rotten && rng.IntN(2) == 0 {
					continue
				}
				view, err := s.Sync(t.Context(), path, "")
				if err != nil && r.away.Load() && len(last) == 0 {
					continue // nothing was ever copied
				}
				must(t, err)
				if !r.away.Load() {
					known = true
					last = map[string]string{}
					for key, content := range r.data {
						last[strings.TrimPrefix(key, "models/")] = content
					}
				}
				if known {
					if got := r.files(view); !maps.Equal(got, last) {
						t.Fatalf("step %d, away %t: the view holds %v, want %v", step, r.away.Load(), got, last)
					}
				}
			}
		})
	}
}
