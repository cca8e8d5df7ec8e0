package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/sluice-serve/sluice/test/checked"
)

// serial makes the names of regions differ.
type serial struct{ n atomic.Uint64 }

func (s *serial) next() string {
	return fmt.Sprintf("%s%d-%d", regionPrefix(), rand.Uint64(), s.n.Add(1))
}

// region is a file of ours in /dev/shm.
type region struct{ name, path string }

func newRegion(names *serial, size int64) (*region, error) {
	name := names.next()
	r := &region{name, filepath.Join("/dev/shm", name)}
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(size); err != nil {
		return nil, err
	}
	return r, f.Close()
}

func (r *region) write(b []byte) error {
	f, err := os.OpenFile(r.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(b, 0)
	return err
}

func (s *server) regionURL(name, verb string) string {
	return s.url("/v2/systemsharedmemory/region/" + name + "/" + verb)
}

func registration(key string, offset, size int64) []byte {
	return fmt.Appendf(nil, `{"key":"/%s","offset":%d,"byte_size":%d}`, key, offset, size)
}

// regionRequest asks echo for n integers of a region, and wants the answer behind them.
func regionRequest(name string, n int, offset int64) []byte {
	return fmt.Appendf(nil, `{"inputs":[{"name":"INPUT0","shape":[1,%d],"datatype":"INT32","parameters":{"shared_memory_region":%q,"shared_memory_offset":%d,"shared_memory_byte_size":%d}}],`+
		`"outputs":[{"name":"OUTPUT0","parameters":{"shared_memory_region":%q,"shared_memory_offset":%d,"shared_memory_byte_size":%d}}]}`,
		n, name, offset, 4*n, name, offset+int64(4*n), 4*n)
}

// openRegion registers a region, uses it some times, and gives it up.
func openRegion(s *server, rng *rand.Rand) (exchange, func()) {
	c, names := s.web(), &serial{}
	return func(ctx context.Context) (err error) {
		n := 1 + rng.IntN(100000)
		r, err := newRegion(names, int64(8*n))
		if err != nil {
			return err
		}
		defer func() {
			if removed := os.Remove(r.path); err == nil {
				err = removed
			}
		}()
		if _, _, err := checked.Post(ctx, c, s.regionURL(r.name, "register"), registration(r.name, 0, int64(8*n))); err != nil {
			return fmt.Errorf("register: %w", err)
		}
		for range 3 {
			v := checked.Raw(checked.Values(rng, n))
			if err := r.write(v); err != nil {
				return err
			}
			if _, _, err = checked.Post(ctx, c, s.url("/v2/models/echo/infer"), regionRequest(r.name, n, 0)); err != nil {
				break
			}
			got, failed := os.ReadFile(r.path)
			if failed != nil {
				return failed
			}
			if !bytes.Equal(got[len(v):], v) {
				return checked.Wrongf("the region has other bytes than were sent")
			}
		}
		if _, _, given := checked.Post(ctx, c, s.regionURL(r.name, "unregister"), nil); err == nil && given != nil {
			err = fmt.Errorf("unregister: %w", given)
		}
		return err
	}, c.CloseIdleConnections
}

func attacksOnRegions() []attack {
	return []attack{
		{name: "region-shrunk", run: onRegions(func(r *region, _ *rand.Rand) error { return os.Truncate(r.path, 1) })},
		{name: "region-unlinked", run: onRegions(func(r *region, _ *rand.Rand) error { return os.Remove(r.path) })},
		{name: "region-replaced", run: onRegions(replaced)},
		{name: "region-flickering", run: onRegions(flicker)},
		{name: "region-offsets", run: oddRegions},
		{name: "region-storm", run: regionStorm},
	}
}

// onRegions registers regions, does something to them, and uses them all the same.
func onRegions(harm func(r *region, rng *rand.Rand) error) func(context.Context, *server, *rand.Rand, *notes) error {
	return func(ctx context.Context, s *server, rng *rand.Rand, n *notes) error {
		c, names, seed := s.web(), &serial{}, rng.Uint64()
		defer c.CloseIdleConnections()
		return many(ctx, 4, func(ctx context.Context) error {
			own := rand.New(rand.NewPCG(seed, rand.Uint64()))
			const size = 1 << 20
			r, err := newRegion(names, size)
			if err != nil {
				return err
			}
			defer func() { _ = os.Remove(r.path) }() // the attack may have
			// not ctx: what is registered is given up again
			whole := context.WithoutCancel(ctx)
			_, _, err = checked.Post(whole, c, s.regionURL(r.name, "register"), registration(r.name, 0, size))
			refused(ctx, n, err)
			for range 3 {
				if err := harm(r, own); err != nil && !os.IsNotExist(err) {
					return err
				}
				_, _, err = checked.Post(whole, c, s.url("/v2/models/echo/infer"), regionRequest(r.name, size/8, 0))
				refused(ctx, n, err)
			}
			_, _, err = checked.Post(whole, c, s.regionURL(r.name, "unregister"), nil)
			if err != nil && ctx.Err() == nil {
				n.add("not given up")
			}
			return nil
		})
	}
}

// replaced puts another, smaller file at the region's name.
func replaced(r *region, _ *rand.Rand) error {
	if err := os.Remove(r.path); err != nil {
		return err
	}
	return os.WriteFile(r.path, []byte("small"), 0o600)
}

// flicker changes the size to and fro, so that some requests meet it in between.
func flicker(r *region, rng *rand.Rand) error {
	go func() {
		for range 20 {
			if os.Truncate(r.path, rng.Int64N(1<<20)) != nil || os.Truncate(r.path, 1<<20) != nil {
				return // it is gone
			}
		}
	}()
	return nil
}

// oddRegions registers and uses what can't be.
func oddRegions(ctx context.Context, s *server, _ *rand.Rand, n *notes) error {
	c, names := s.web(), &serial{}
	defer c.CloseIdleConnections()
	return many(ctx, 2, func(ctx context.Context) error {
		r, err := newRegion(names, 4096)
		if err != nil {
			return err
		}
		defer func() { _ = os.Remove(r.path) }() // /dev/shm is looked at at rest
		whole := context.WithoutCancel(ctx)
		for _, at := range [][2]int64{{-1, 10}, {0, -1}, {0, 1 << 62}, {1 << 62, 1 << 62}, {1<<63 - 1, 1}, {4096, 1}, {0, 4097}, {4095, 2}} {
			_, _, err := checked.Post(whole, c, s.regionURL(r.name, "register"), registration(r.name, at[0], at[1]))
			refused(ctx, n, err)
		}
		for _, key := range []string{"../../etc/passwd", "..", "", "a/b", strings.Repeat("x", 5000), "nope\x00", "triton_python_backend_shm_region_1"} {
			_, _, err := checked.Post(whole, c, s.regionURL(r.name, "register"), registration(strings.ReplaceAll(key, "\x00", `\u0000`), 0, 1))
			refused(ctx, n, err)
		}
		if _, _, err := checked.Post(whole, c, s.regionURL(r.name, "register"), registration(r.name, 0, 4096)); err != nil {
			return fmt.Errorf("register: %w", err)
		}
		for _, at := range []int64{-1, -4096, 4096, 4092, 1 << 40, 1<<63 - 8} {
			_, _, err := checked.Post(whole, c, s.url("/v2/models/echo/infer"), regionRequest(r.name, 4, at))
			refused(ctx, n, err)
		}
		if _, _, err := checked.Post(whole, c, s.regionURL(r.name, "unregister"), nil); err != nil {
			return fmt.Errorf("unregister: %w", err)
		}
		return nil
	})
}

// regionStorm registers and gives up as fast as it can, many times the same name at once.
func regionStorm(ctx context.Context, s *server, _ *rand.Rand, n *notes) error {
	c, names := s.web(), &serial{}
	defer c.CloseIdleConnections()
	r, err := newRegion(names, 1<<20)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(r.path) }() // /dev/shm is looked at at rest
	turn := atomic.Uint64{}
	err = many(ctx, 8, func(ctx context.Context) error {
		name := fmt.Sprintf("%s-%d", r.name, turn.Add(1)%4)
		_, _, err := checked.Post(context.WithoutCancel(ctx), c, s.regionURL(name, "register"), registration(r.name, 0, 1<<20))
		refused(ctx, n, err)
		_, _, err = checked.Post(context.WithoutCancel(ctx), c, s.regionURL(name, "unregister"), nil)
		refused(ctx, n, err)
		return nil
	})
	for i := range 4 {
		if _, _, given := checked.Post(context.WithoutCancel(ctx), c, s.regionURL(fmt.Sprintf("%s-%d", r.name, i), "unregister"), nil); given != nil {
			n.add("not given up")
		}
	}
	return err
}
