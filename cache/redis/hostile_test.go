package redis

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/cache/cachetest"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/redistest"
)

// impostor answers each command that comes with the same bytes, as often as repeated.
func impostor(t *testing.T, answer string, repeat int) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	serve := func(c net.Conn) {
		in := bufio.NewReader(c)
		for {
			head, err := in.ReadString('\n') // *n, then a length and a text n times
			if err != nil {
				return
			}
			n, _ := strconv.Atoi(strings.TrimSpace(head[1:]))
			for range 2 * n {
				if _, err := in.ReadString('\n'); err != nil {
					return
				}
			}
			for range repeat {
				if _, err := io.WriteString(c, answer); err != nil {
					return
				}
			}
		}
	}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() { serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

// TestHostileReplies: whatever comes from the other end, a lookup is a miss, takes bounded
// memory, and ends.
func TestHostileReplies(t *testing.T) {
	for name, answer := range map[string]struct {
		text   string
		repeat int
	}{
		"a text of 2^63 bytes":         {"$9223372036854775806\r\n", 1},
		"a text of a terabyte":         {"$1099511627776\r\n", 1},
		"half a gigabyte":              {"$536870912\r\nxxxx", 1},
		"a list of 2^63":               {"*9223372036854775807\r\n", 1},
		"a list of a thousand million": {"*1000000000\r\n", 1},
		"lists in lists":               {strings.Repeat("*1\r\n", 4096), 4096},
		"wide lists in lists":          {strings.Repeat("*1000000\r\n", 128), 1},
		"a line that never ends":       {"+" + strings.Repeat("x", 1<<20), 512},
		"an error that never ends":     {"-" + strings.Repeat("x", 1<<20), 512},
		"negative lengths":             {"$-7\r\n*-9\r\n", 1},
		"no length":                    {"$\r\n", 1},
		"two answers":                  {"$1\r\nx\r\n$1\r\ny\r\n", 1},
		"another kind":                 {":9223372036854775808\r\n", 1},
		"a map":                        {"%2000000000\r\n", 1},
		"attributes":                   {strings.Repeat("|1\r\n", 4096), 4096},
		"a push message":               {">3\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nx\r\n_\r\n", 1},
		"a blob error":                 {"!4611686018427387904\r\n", 1},
		"a verbatim text":              {"=4611686018427387904\r\n", 1},
		"nothing of ours":              {"\x00\xff\x00", 100},
	} {
		t.Run(name, func(t *testing.T) {
			c, r := rig(t, impostor(t, answer.text, answer.repeat), func(c *Config) {
				c.Budget,
					c.SocketTimeout = 300*time.Millisecond, 300*time.Millisecond
			})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range 3 {
				start := time.Now()
				r.Goes(t, cachetest.Subject("m", "1", 1), cachetest.Request(1))
				if took := time.Since(start); took > slack {
					t.Errorf("a lookup took %v", took)
				}
			}
			r.Insert(cachetest.Subject("m", "1", 1), cachetest.Request(1), cachetest.Response(1))
			if _, err := c.Purge(t.Context(), cache.Selector{}); err == nil {
				t.Error("the purge says that it went well")
			}
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > 128<<20 {
				t.Errorf("it took %d MiB", took>>20)
			}
		})
	}
}

// TestPurgeEnds: a server whose keys never come to an end does not keep a purge for ever.
func TestPurgeEnds(t *testing.T) {
	c, _ := rig(t, impostor(t, "*2\r\n$1\r\n7\r\n*0\r\n", 1), func(c *Config) { c.SocketTimeout = time.Second })
	c.purgeTime = time.Second
	done := make(chan error, 1)
	go func() {
		_, err := c.Purge(t.Context(), cache.Selector{})
		done <- err
	}()
	select {
	case err := <-done:
		if infer.CodeOf(err) != infer.Unavailable {
			t.Errorf("%v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the purge does not end")
	}
}

// forge is a value for a key with other content, under its right checksum.
func forge(key *[32]byte, stored time.Time, body func(b []byte) []byte) string {
	b := append([]byte(magic), key[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(stored.UnixMilli()))
	return string(sign(body(b)))
}

// TestForgedValues: values that the checksum fits, as somebody writes who may write to Redis,
// are never more than they say, nor less.
func TestForgedValues(t *testing.T) {
	s := redistest.Start(t)
	c, r := rig(t, s.Port, nil)
	sub := cachetest.Subject("m", "1", 1)
	q := r.Keys.Query(sub, cachetest.Request(1))
	key, _ := q.Shared()
	name := c.key(q, &key)
	q.Done()
	other := r.Keys.Query(sub, cachetest.Request(2))
	otherKey, _ := other.Shared()
	other.Done()
	one := func(d infer.Datatype, shape []int64, data string) func([]byte) []byte {
		return func(b []byte) []byte {
			b = append(appendText(appendLen(b, 1), "out"), byte(d))
			b = cache.AppendShape(appendLen(b, len(shape)), shape)
			return appendLen(append(appendLen(b, len(data)), data...), 0)
		}
	}
	param := func(value ...byte) func([]byte) []byte {
		return func(b []byte) []byte { return append(appendText(appendLen(appendLen(b, 0), 1), "p"), value...) }
	}
	nan := binary.LittleEndian.AppendUint64([]byte{byte(infer.KindDouble)}, math.Float64bits(math.NaN()))
	now := time.Now()
	for what, row := range map[string]struct {
		value string
		hit   bool
	}{
		"as it should be":          {forge(&key, now, one(infer.Int8, []int64{2}, "ab")), true},
		"of another key":           {forge(&otherKey, now, one(infer.Int8, []int64{2}, "ab")), false},
		"too short":                {forge(&key, now, one(infer.Int8, []int64{3}, "ab")), false},
		"too long":                 {forge(&key, now, one(infer.Int8, []int64{1}, "ab")), false},
		"a negative dimension":     {forge(&key, now, one(infer.Int8, []int64{-2}, "ab")), false},
		"two negative dimensions":  {forge(&key, now, one(infer.Int8, []int64{-1, -2}, "ab")), false},
		"dimensions that overflow": {forge(&key, now, one(infer.Int8, []int64{1 << 32, 1 << 32}, "")), false},
		"that overflow to two":     {forge(&key, now, one(infer.Int8, []int64{math.MaxInt64, 2, -1}, "ab")), false},
		"bytes that overflow":      {forge(&key, now, one(infer.FP64, []int64{1 << 61}, "")), false},
		"nothing of 2^62":          {forge(&key, now, one(infer.Int8, []int64{0, 1 << 62, 1 << 62}, "")), true},
		"no datatype":              {forge(&key, now, one(infer.Invalid, []int64{2}, "ab")), false},
		"an unknown datatype":      {forge(&key, now, one(200, []int64{2}, "ab")), false},
		"a broken element":         {forge(&key, now, one(infer.Bytes, []int64{1}, "\xff\xff\xff\xff")), false},
		"an element":               {forge(&key, now, one(infer.Bytes, []int64{1}, "\x01\x00\x00\x00a")), true},
		"2^32 outputs": {forge(&key, now,
			func(b []byte) []byte { return binary.LittleEndian.AppendUint32(b, math.MaxUint32) }), false},
		"many outputs": {forge(&key, now, func(b []byte) []byte { return appendLen(b, maxList) }), false},
		"a name of 4 GB": {forge(&key, now, func(b []byte) []byte {
			return appendLen(appendLen(b, 1),
				math.MaxUint32)
		}), false},
		"something behind it": {forge(&key, now, func(b []byte) []byte {
			return append(one(infer.Int8,
				[]int64{2}, "ab")(b), 0)
		}), false},
		"an unknown parameter":  {forge(&key, now, param(99)), false},
		"a number that is none": {forge(&key, now, param(nan...)), false},
		"a text that is none": {forge(&key, now, param(append([]byte{byte(infer.KindString), 1, 0, 0, 0},
			0xff)...)), false},
		"from the future":            {forge(&key, now.Add(48*time.Hour), one(infer.Int8, []int64{2}, "ab")), false},
		"from a far future":          {forge(&key, time.UnixMilli(math.MaxInt64), one(infer.Int8, []int64{2}, "ab")), false},
		"from long ago":              {forge(&key, time.UnixMilli(math.MinInt64), one(infer.Int8, []int64{2}, "ab")), false},
		"over its time, and kept on": {forge(&key, now.Add(-100*time.Hour), one(infer.Int8, []int64{2}, "ab")), false},
	} {
		if err := c.client.Set(t.Context(), name, row.value, 0).Err(); err != nil {
			t.Fatal(err)
		}
		e := r.Lookup(t.Context(), sub, cachetest.Request(1))
		if (e != nil) != row.hit {
			t.Errorf("%s: %+v, want a hit: %t", what, e, row.hit)
		}
	}
	if f := c.Figures()[0]; f.Failures > 0 {
		t.Errorf("figures %+v", f)
	}
}

// TestOtherKinds: what is of another kind than a text is a miss, and no fault of Redis.
func TestOtherKinds(t *testing.T) {
	s := redistest.Start(t)
	c, r := rig(t, s.Port, nil)
	sub := cachetest.Subject("m", "1", 1)
	q := r.Keys.Query(sub, cachetest.Request(1))
	key, _ := q.Shared()
	name := c.key(q, &key)
	q.Done()
	for _, command := range []string{"HSET " + name + " a b", "RPUSH " + name + " a", "SADD " + name + " a",
		"ZADD " + name + " 1 a", "XADD " + name + " * a b"} {
		if err := c.client.Del(t.Context(), name).Err(); err != nil {
			t.Fatal(err)
		}
		if answer, err := s.Say(command); err != nil || strings.HasPrefix(answer, "-") {
			t.Fatal(answer, err)
		}
		r.Goes(t, sub, cachetest.Request(1))
	}
	if f := c.Figures()[0]; f.Failures > 0 {
		t.Errorf("figures %+v", f)
	}
}

// TestLargeForeignValue: a value larger than any of ours is not brought over.
func TestLargeForeignValue(t *testing.T) {
	s := redistest.Start(t, "--maxmemory", "0")
	c, r := rig(t, s.Port, func(c *Config) { c.Budget, c.SocketTimeout = time.Minute, time.Minute })
	sub := cachetest.Subject("m", "1", 1)
	q := r.Keys.Query(sub, cachetest.Request(1))
	key, _ := q.Shared()
	if err := c.client.SetRange(t.Context(), c.key(q, &key), 200<<20, "x").Err(); err != nil {
		t.Fatal(err)
	}
	q.Done()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r.Goes(t, sub, cachetest.Request(1))
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
		t.Errorf("the lookup took %d MiB", took>>20)
	}
	if f := c.Figures()[0]; f.Failures > 0 {
		t.Errorf("figures %+v", f)
	}
}
