package listen

import (
	"cmp"
	"crypto/tls"
	"net"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Patience is how long, in ns, a peer may take nothing of answers that wait for it, where
// memory is scarce. Links that lose a few packets in a row are back within it (Linux sends
// again after 0.2, 0.6, 1.4 and 3 s), and who waits for memory mostly still does.
const Patience = 5_000_000_000

// Sent is how far the bytes of a connection that the kernel was given have got. Taken and
// Queued together are all that it was given, but for a constant.
type Sent struct {
	Taken  int64 // by the peer's kernel; its difference to another one counts alone
	Queued int64 // not taken yet
}

// SentOn asks the kernel, for a socket: fd, or where that is below 0 the one under nc. False:
// there is none. Over a Unix socket, where the kernel does not count, everything that changes
// is progress.
// Source: tcp(7), TCP_INFO; linux/sockios.h, SIOCOUTQ.
func SentOn(nc net.Conn, fd int) (s Sent, ok bool) {
	if fd >= 0 {
		return sentOn(fd)
	}
	if t, encrypted := nc.(*tls.Conn); encrypted {
		nc = t.NetConn()
	}
	raw := socketOf(nc)
	if raw == nil {
		return Sent{}, false
	}
	if raw.Control(func(fd uintptr) { s, ok = sentOn(int(fd)) }) != nil {
		return Sent{}, false
	}
	return s, ok
}

func sentOn(fd int) (Sent, bool) {
	queued, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if err != nil {
		return Sent{}, false
	}
	info, err := unix.GetsockoptTCPInfo(fd, syscall.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return Sent{Taken: -int64(queued), Queued: int64(queued)}, true
	}
	return Sent{Taken: int64(info.Bytes_acked), Queued: int64(queued)}, true
}

// Pace is when a peer took something last, as far as Look has seen. The zero value has not
// looked yet. It is pure.
type Pace struct {
	at    int64
	taken int64
}

// Look is told how far the peer has got at a time, and says since when it has taken nothing
// although something was there: now, where it did, or where this is the first look.
func (p *Pace) Look(now int64, s Sent) (since int64) {
	if p.at == 0 || s.Taken != p.taken || s.Queued == 0 {
		p.at, p.taken = now, s.Taken
	}
	return p.at
}

// Looks is for how many periods it is worth looking at who takes what. The zero value is for none.
type Looks struct{ left int }

// lookOn is how many periods looking goes on when memory is not scarce any more: who lives at
// the edge of it is to count.
const lookOn = 10

// Look is told once a period whether memory is scarce, and says whether to look.
func (l *Looks) Look(scarce bool) bool {
	if scarce {
		l.left = lookOn
	}
	if l.left == 0 {
		return false
	}
	l.left--
	return true
}

// fewDrops is how many answers are dropped at a time; of more than four times as many a
// quarter. Their memory comes back a little later, and then it may be enough.
const fewDrops = 32

// Untaken is what is known of an answer that its peer does not take.
type Untaken struct {
	Since int64 // on the clock of infer.Now
	Size  int64 // bytes, or how many there are
}

// DropUntaken drops of what was found those that have waited longest, and of these the largest
// first, until memory is not scarce any more or it is enough for now. drop says that it has; not
// so where something has moved meanwhile. It gives how many were.
func DropUntaken[T any](found []T, of func(*T) Untaken, scarce func() bool, drop func(*T) bool) (dropped int) {
	slices.SortFunc(found, func(x, y T) int {
		a, b := of(&x), of(&y)
		return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(b.Size, a.Size))
	})
	for i := range found[:min(len(found), max(len(found)/4, fewDrops))] {
		if !scarce() {
			break
		}
		if drop(&found[i]) {
			dropped++
		}
	}
	return dropped
}
