package shm

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const echoEnv = "SLUICE_TEST_ECHO"

// TestMain is also the other process of the benchmarks: it answers mailbox 0 of the
// lane that it inherited.
func TestMain(m *testing.M) {
	if os.Getenv(echoEnv) == "" {
		os.Exit(m.Run())
	}
	lane, err := OpenLane(3, 4)
	if err != nil {
		panic(err)
	}
	if err := echo(lane, 0); !errors.Is(err, ErrClosed) {
		panic(err)
	}
}

// echo answers every post with a completion of the same offset and length.
func echo(l *Lane, box int) error {
	m, err := l.Mailbox(box)
	if err != nil {
		return err
	}
	if err := l.Complete(Completion{Batch: 1 << 63}); err != nil { // ready
		return err
	}
	for {
		off, n, err := m.Take(0)
		if err != nil {
			return err
		}
		if err := l.Complete(Completion{Batch: uint64(off), Mailbox: uint32(box), Offset: off, Length: n, Token: uint64(n)}); err != nil {
			return err
		}
	}
}

// openLanes maps both ends of a lane in this process.
func openLanes(t testing.TB, c LaneConfig) (gateway, worker *Lane) {
	t.Helper()
	gateway, err := NewLane(c)
	if err != nil {
		t.Fatal(err)
	}
	if worker, err = OpenLane(dup(t, gateway.FD()), dup(t, gateway.Bell())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(gateway.Close(), worker.Close()); err != nil {
			t.Error(err)
		}
	})
	return gateway, worker
}

func receive(t testing.TB, l *Lane) Completion {
	t.Helper()
	var c [1]Completion
	if n, err := l.Completions(c[:], 10*time.Second); err != nil || n != 1 {
		t.Fatalf("%d completions, %v", n, err)
	}
	return c[0]
}

func TestLaneRoundTrips(t *testing.T) {
	gateway, worker := openLanes(t, LaneConfig{Mailboxes: 4, Completions: 4, Releases: 4})
	var wg sync.WaitGroup
	for box := range 4 {
		wg.Go(func() {
			if err := echo(worker, box); !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
	}
	for range 4 {
		receive(t, gateway)
	}
	const rounds = 2000
	for box := range 4 {
		gateway.Post(box, 0, 5)
	}
	seen := make([]int64, 4)
	for done := 0; done < 4; {
		c := receive(t, gateway)
		box := int(c.Mailbox)
		if c.Offset != seen[box] || c.Length != 5 || c.Token != 5 {
			t.Fatalf("got %+v, want offset %d", c, seen[box])
		}
		if seen[box]++; seen[box] == rounds {
			done++
			continue
		}
		gateway.Post(box, seen[box], 5)
	}
	gateway.Shut()
	wg.Wait()
}

func TestMailboxCloses(t *testing.T) {
	gateway, worker := openLanes(t, LaneConfig{Mailboxes: 2})
	m, err := worker.Mailbox(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.Take(time.Millisecond); !errors.Is(err, ErrTimeout) {
		t.Errorf("an empty mailbox answers %v", err)
	}
	gateway.Post(1, 64, 3)
	gateway.CloseMailbox(1)
	if off, n, err := m.Take(0); off != 64 || n != 3 || err != nil {
		t.Errorf("the last post is %d, %d, %v", off, n, err)
	}
	if _, _, err := m.Take(0); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed mailbox answers %v", err)
	}
	gateway.ResetMailbox(1)
	if m, err = worker.Mailbox(1); err != nil {
		t.Fatal(err)
	}
	result := make(chan error)
	go func() {
		_, _, err := m.Take(0)
		result <- err
	}()
	m.Close()
	if err := <-result; !errors.Is(err, ErrClosed) {
		t.Errorf("a closed mailbox answers %v", err)
	}
	if _, err := worker.Mailbox(2); err == nil {
		t.Error("there is a mailbox too many")
	}
}

func TestShutWakesAll(t *testing.T) {
	gateway, worker := openLanes(t, LaneConfig{Mailboxes: 2, Completions: 1})
	if err := worker.Complete(Completion{}); err != nil {
		t.Fatal(err)
	}
	m, err := worker.Mailbox(0)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, _, err := m.Take(0); !errors.Is(err, ErrClosed) {
			t.Errorf("Take: %v", err)
		}
	})
	wg.Go(func() {
		if err := worker.Complete(Completion{}); !errors.Is(err, ErrClosed) { // the ring is full
			t.Errorf("Complete: %v", err)
		}
	})
	wg.Go(func() {
		if worker.WaitReleased(0) {
			t.Error("WaitReleased found something")
		}
	})
	gateway.Shut()
	wg.Wait()
	receive(t, gateway)
	if _, err := gateway.Completions(make([]Completion, 1), 0); !errors.Is(err, ErrClosed) {
		t.Errorf("Completions: %v", err)
	}
}

func TestReleaseRing(t *testing.T) {
	gateway, worker := openLanes(t, LaneConfig{Releases: 4})
	for i := range uint64(10) {
		gateway.Release(i) // six find it full
	}
	var got []uint64
	buf := make([]uint64, 3)
	for next := uint64(10); len(got) < 12; next++ {
		for n := worker.Released(buf); n > 0; n = worker.Released(buf) {
			got = append(got, buf[:n]...)
		}
		gateway.Release(next) // and what waited before it
	}
	for i, v := range got {
		if v != uint64(i) {
			t.Fatalf("got %v, want them in order", got)
		}
	}
	wait := make(chan bool)
	for worker.Released(buf) > 0 {
		continue
	}
	go func() { wait <- worker.WaitReleased(10 * time.Second) }()
	gateway.Release(77)
	if !<-wait {
		t.Error("WaitReleased did not see the token")
	}
}

// A worker that writes nonsense is found out, and nothing is read outside the ring.
func TestLaneCorrupt(t *testing.T) {
	for name, spoil := range map[string]func(worker *Lane){
		"head ahead":      func(w *Lane) { atomic.StoreUint64(w.compHead, 1<<40) },
		"head behind":     func(w *Lane) { atomic.StoreUint64(w.compHead, ^uint64(0)) },
		"unknown mailbox": func(w *Lane) { _ = w.Complete(Completion{Mailbox: 1 << 30}) },
	} {
		t.Run(name, func(t *testing.T) {
			gateway, worker := openLanes(t, LaneConfig{Mailboxes: 1, Completions: 4})
			spoil(worker)
			if _, err := gateway.Completions(make([]Completion, 8), time.Second); !errors.Is(err, ErrCorrupt) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// So is a gateway: what it gives back is no more than the ring holds, or nothing.
func TestLaneReleasesNonsense(t *testing.T) {
	for _, head := range []uint64{1 << 40, ^uint64(0), 1<<63 + 1} {
		gateway, worker := openLanes(t, LaneConfig{Mailboxes: 1, Releases: 4})
		atomic.StoreUint64(gateway.relHead, head)
		if n := worker.Released(make([]uint64, 8)); n != 0 {
			t.Errorf("head %#x: %d tokens came back", head, n)
		}
		if worker.WaitReleased(time.Millisecond) {
			t.Errorf("head %#x: a token was waited for, and came", head)
		}
	}
}

func TestLaneConfig(t *testing.T) {
	for _, c := range []LaneConfig{{Mailboxes: -1}, {Completions: 3}, {Releases: 1 << 30}} {
		if _, err := NewLane(c); err == nil {
			t.Errorf("a lane of %+v was made", c)
		}
	}
	a := openTestArena(t, 1<<20)
	var fds [2]int
	for i := range fds {
		var err error
		if fds[i], err = unix.Dup(a.FD()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := OpenLane(fds[0], fds[1]); err == nil {
		t.Error("an arena is no lane")
	}
	for _, fd := range fds {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			t.Errorf("descriptor %d is still open", fd)
		}
	}
}

func TestManyProducers(t *testing.T) {
	gateway, worker := openLanes(t, LaneConfig{Completions: 8})
	const producers, each = 4, 2000
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			for i := range each {
				if err := worker.Complete(Completion{Mailbox: uint32(p), Batch: uint64(i), NoMemory: true}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	next := make([]uint64, producers)
	buf := make([]Completion, 16)
	for total := 0; total < producers*each; {
		n, err := gateway.Completions(buf, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range buf[:n] {
			if c.Batch != next[c.Mailbox] || !c.NoMemory {
				t.Fatalf("got %+v, want batch %d", c, next[c.Mailbox])
			}
			next[c.Mailbox]++
		}
		total += n
	}
	wg.Wait()
}

func benchmarkRoundTrip(b *testing.B, gateway *Lane) {
	receive(b, gateway) // ready
	buf := make([]Completion, 8)
	b.ReportAllocs()
	for b.Loop() {
		gateway.Post(0, 64, 100)
		if _, err := gateway.Completions(buf, 0); err != nil {
			b.Fatal(err)
		}
	}
	gateway.Shut()
}

func BenchmarkRoundTripThreads(b *testing.B) {
	gateway, worker := openLanes(b, LaneConfig{Mailboxes: 1})
	done := make(chan error)
	go func() { done <- echo(worker, 0) }()
	benchmarkRoundTrip(b, gateway)
	if err := <-done; !errors.Is(err, ErrClosed) {
		b.Error(err)
	}
}

func BenchmarkRoundTripProcesses(b *testing.B) {
	gateway, _ := openLanes(b, LaneConfig{Mailboxes: 1})
	file, bell := os.NewFile(uintptr(dup(b, gateway.FD())), "lane"), os.NewFile(uintptr(dup(b, gateway.Bell())), "bell")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), echoEnv+"=1")
	cmd.ExtraFiles = []*os.File{file, bell}
	cmd.Stderr = os.Stderr
	if err := errors.Join(cmd.Start(), file.Close(), bell.Close()); err != nil {
		b.Fatal(err)
	}
	benchmarkRoundTrip(b, gateway)
	if err := cmd.Wait(); err != nil {
		b.Fatal(err)
	}
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	b.ReportMetric(float64(cpu.Microseconds())/float64(b.N), "worker-cpu-us/op")
}

// The bell may have rung for completions that were taken without waiting; the next wait
// must not end early by that.
func TestStaleBell(t *testing.T) {
	gateway, worker := openLanes(t, LaneConfig{Mailboxes: 1})
	var got [4]Completion
	gateway.compWaiter.arm() // as if the reader had been about to sleep
	if err := worker.Complete(Completion{Batch: 1}); err != nil {
		t.Fatal(err)
	}
	if n, err := gateway.Completions(got[:], time.Minute); n != 1 || err != nil {
		t.Fatalf("the first: %d, %v", n, err)
	}
	var second sync.WaitGroup
	second.Go(func() {
		for atomic.LoadUint32(gateway.compWaiter.word) == 0 {
			runtime.Gosched()
		}
		if err := worker.Complete(Completion{Batch: 2}); err != nil {
			t.Error(err)
		}
	})
	defer second.Wait()
	if n, err := gateway.Completions(got[:], time.Minute); n != 1 || err != nil || got[0].Batch != 2 {
		t.Errorf("the second: %d, %v, %+v", n, err, got[0])
	}
	if _, err := gateway.Completions(got[:], time.Millisecond); !errors.Is(err, ErrTimeout) {
		t.Errorf("nothing comes: %v", err)
	}
}

// A peer that ends between taking back that somebody sleeps and waking him, or that only says
// so, must not keep the other side asleep: Shut wakes whatever the words say.
func TestShutWakesWhoseWakerEnded(t *testing.T) {
	gateway, worker := openLanes(t, LaneConfig{Mailboxes: 1, Completions: 1})
	m, err := worker.Mailbox(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Complete(Completion{}); err != nil { // the ring is full
		t.Fatal(err)
	}
	receive(t, gateway)
	if err := worker.Complete(Completion{}); err != nil {
		t.Fatal(err)
	}
	results, instance, producer := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() {
		_, _, err := m.Take(0)
		instance <- err
	}()
	go func() { producer <- worker.Complete(Completion{}) }()
	asleep(t, m.waiter.word)
	asleep(t, worker.fullWaiter.word)
	worker.Shut()
	wantClosed(t, "the instance", instance)
	wantClosed(t, "the producer", producer)

	gateway, worker = openLanes(t, LaneConfig{Mailboxes: 1})
	go func() {
		_, err := gateway.Completions(make([]Completion, 1), 0)
		results <- err
	}()
	asleep(t, worker.compWaiter.word)
	gateway.Shut()
	wantClosed(t, "the reader of results", results)
}

// asleep waits until somebody says in a word that he sleeps, gives him the time to do so, and
// takes the word back.
func asleep(t *testing.T, word *uint32) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); atomic.LoadUint32(word) == 0; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("nobody sleeps")
		}
	}
	<-time.After(20 * time.Millisecond) // one that is not asleep by then finds the word taken back
	atomic.StoreUint32(word, 0)
}

func wantClosed(t *testing.T, who string, ended chan error) {
	t.Helper()
	select {
	case err := <-ended:
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", who, err)
		}
	case <-time.After(5 * time.Second):
		t.Fatalf("%s sleeps on", who)
	}
}
