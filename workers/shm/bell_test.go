package shm

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// No result is left in the ring while its reader sleeps, however its looking and arming and the
// workers' results fall together. The reader is as gateway/loop: it polls, arms, and waits for
// the edge of a bell that nobody reads.
func TestNoBellIsLost(t *testing.T) {
	for _, ring := range []int{1, 2, 64} {
		gateway, worker := openLanes(t, LaneConfig{Mailboxes: 4, Completions: ring})
		poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(poll)
		if err := unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, gateway.Bell(), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}); err != nil {
			t.Fatal(err)
		}
		const producers, each = 4, 4000
		var wg sync.WaitGroup
		for p := range producers {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(p), uint64(ring)))
				for i := range each {
					for range rng.IntN(4) {
						runtime.Gosched()
					}
					if err := worker.Complete(Completion{Mailbox: uint32(p), Batch: uint64(i)}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		var next [producers]uint64
		read := func() (n int) {
			var buf [3]Completion
			n, err := gateway.Poll(buf[:])
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range buf[:n] {
				if c.Batch != next[c.Mailbox] {
					t.Fatalf("ring of %d: got %+v, want batch %d", ring, c, next[c.Mailbox])
				}
				next[c.Mailbox]++
			}
			return n
		}
		slept := 0
		for total := 0; total < producers*each; {
			n := read()
			total += n
			if n > 0 || gateway.Arm() {
				continue
			}
			slept++
			events := make([]unix.EpollEvent, 1)
			woken, err := unix.EpollWait(poll, events, 10000)
			if err != nil && !errors.Is(err, unix.EINTR) {
				t.Fatal(err)
			}
			if woken == 0 && err == nil {
				t.Fatalf("ring of %d: nobody rang after %d of %d results; %d are there", ring, total, producers*each, read())
			}
		}
		wg.Wait()
		t.Logf("ring of %d: slept %d times", ring, slept)
	}
}
