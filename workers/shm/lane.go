package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Errors of a Lane, to be compared with errors.Is.
var (
	// ErrClosed: the mailbox or the lane was closed and nothing is left in it.
	ErrClosed = errors.New("shm: the lane is closed")
	// ErrTimeout: the time to wait is over.
	ErrTimeout = errors.New("shm: nothing came in time")
	// ErrCorrupt: the peer wrote what it never may; it can't be trusted any more.
	ErrCorrupt = errors.New("shm: the peer wrote nonsense into the lane")
)

// LaneConfig are the sizes of a lane; each zero value is its default.
type LaneConfig struct {
	Mailboxes   int // 1024; the most instances in one worker
	Completions int // 1024, a power of two; results that wait for the gateway
	Releases    int // 16384, a power of two; tokens that wait for the worker
	Answers     int // 8192, a power of two; answers to calls that wait for the worker
}

const (
	laneMagic   = 0x656c736c75696365
	laneVersion = 2
	laneHeader  = 4096
	boxStride   = 128 // the post's line, and the waiter's
	entrySize   = 64
	answerSize  = 32

	// Offsets in the header. What one side writes often stands two lines away from
	// what the other does.
	offMagic       = 0
	offVersion     = 8
	offMailboxes   = 12
	offCompletions = 16
	offReleases    = 20
	offAnswers     = 24
	offClosed      = 128
	offCompHead    = 256
	offCompWaiter  = 384
	offCompTail    = 512
	offFullWaiter  = 640
	offRelHead     = 768
	offRelWaiter   = 896
	offRelTail     = 1024
	offAnsHead     = 1152
	offAnsWaiter   = 1280
	offAnsTail     = 1408
)

// CompletionKind says what a Completion announces.
type CompletionKind uint32

// The kinds of completions.
const (
	Resulted    CompletionKind = iota // a result of a batch, or a part of one
	Called                            // a call of a model: Offset, Length and Token are those of its wire.Call
	CallEnded                         // no answer to the call Batch is wanted any more
	AnswerTaken                       // the answer Token is not read any more
)

// Completion announces one result, or what its Kind says. The gateway gets what the worker
// wrote, unchecked but for Mailbox, which is one of the lane's.
type Completion struct {
	Kind    CompletionKind
	Batch   uint64 // ID of the batch, or of the call
	Mailbox uint32 // of the instance that had it
	// NoMemory ends the batch without a descriptor: the answer of a worker that has no memory
	// left to say more.
	NoMemory bool
	Offset   int64  // of the result's descriptor (wire.Result) in the response arena
	Length   int64  // of the descriptor in bytes
	Token    uint64 // given back through the release ring when nothing reads the result any more
}

// Lane carries descriptors between a gateway and one worker of its host. Nothing spins:
// who has nothing to do sleeps, and who posts wakes only sleepers. A worker's threads
// sleep in futexes. The gateway's reader of completions waits for an eventfd, the bell,
// in Go's network poller: a futex would hold one of its processors, and the monitor
// thread that takes it back would cost more than the wait saves.
type Lane struct {
	mem   []byte
	fd    int
	bell  int                // eventfd that wakes the reader of completions
	ears  *os.File           // the bell in the network poller; the gateway's end only
	hear  syscall.RawConn    // of ears
	heard func(uintptr) bool // news, made once
	slept bool               // the poller has asked for news; of who waits

	mailboxes                  int
	compMask, relMask, ansMask uint64

	closed                            *uint32
	compHead, compTail                *uint64
	relHead, relTail                  *uint64
	ansHead, ansTail                  *uint64
	compWaiter, fullWaiter, relWaiter waiter
	ansWaiter                         waiter
	boxes, completions, releases      int // offsets of the arrays
	answers                           int // that of the ring of answers
	shut                              atomic.Bool
	mu                                sync.Mutex // of the producers: completions in the worker, releases in the gateway
	head                              uint64     // guarded by mu: own position of the ring this side produces
	tail                              uint64     // own position of the ring this side consumes; one goroutine's, or under drainMu
	overflow                          []uint64   // guarded by mu: tokens that found the ring full
	drainMu                           sync.Mutex // of the worker's consumers of the release ring
	answerMu                          sync.Mutex // of the gateway's producers of answers
	answered                          uint64     // own position of the ring of answers; under answerMu in the gateway
}

func (c *LaneConfig) setDefaults() {
	if c.Mailboxes == 0 {
		c.Mailboxes = 1024
	}
	if c.Completions == 0 {
		c.Completions = 1024
	}
	if c.Releases == 0 {
		c.Releases = 16384
	}
	if c.Answers == 0 {
		c.Answers = 8192
	}
}

func (c LaneConfig) validate() error {
	if c.Mailboxes < 1 || c.Mailboxes > 1<<20 {
		return fmt.Errorf("shm: a lane can't have %d mailboxes", c.Mailboxes)
	}
	for _, n := range []int{c.Completions, c.Releases, c.Answers} {
		if n < 1 || n > 1<<24 || n&(n-1) != 0 {
			return fmt.Errorf("shm: a ring can't have %d entries, it has to be a power of two", n)
		}
	}
	return nil
}

func (c LaneConfig) size() int64 {
	return roundToPage(laneHeader + int64(c.Mailboxes)*boxStride + int64(c.Completions)*entrySize + int64(c.Releases)*8 +
		int64(c.Answers)*answerSize)
}

// NewLane makes a lane, the gateway's end. The descriptor (FD) goes to the worker.
func NewLane(c LaneConfig) (*Lane, error) {
	c.setDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	fd, err := newMemfd("sluice-lane", c.size())
	if err != nil {
		return nil, err
	}
	mem, err := mapShared(fd, c.size(), true)
	if err == nil {
		err = seal(fd, sealSize|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return nil, errors.Join(err, (&Lane{mem: mem, fd: fd, bell: -1}).Close())
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("shm: eventfd: %w", err), (&Lane{mem: mem, fd: fd, bell: -1}).Close())
	}
	le := binary.LittleEndian
	le.PutUint64(mem[offMagic:], laneMagic)
	le.PutUint32(mem[offVersion:], laneVersion)
	le.PutUint32(mem[offMailboxes:], uint32(c.Mailboxes))
	le.PutUint32(mem[offCompletions:], uint32(c.Completions))
	le.PutUint32(mem[offReleases:], uint32(c.Releases))
	le.PutUint32(mem[offAnswers:], uint32(c.Answers))
	l := layLane(mem, fd, bell, c)
	l.heard = l.news
	return l, nil
}

// OpenLane maps a lane whose descriptors (FD and Bell) were inherited, which it owns
// from then on, and closes when it fails: the worker's end.
func OpenLane(fd, bell int) (*Lane, error) {
	size, err := checkedSize(fd)
	if err == nil && size < laneHeader {
		err = fmt.Errorf("shm: a lane can't have %d bytes", size)
	}
	var mem []byte
	if err == nil {
		mem, err = mapShared(fd, size, true)
	}
	if err != nil {
		return nil, errors.Join(err, CloseDescriptors(fd, bell))
	}
	unix.CloseOnExec(fd)
	unix.CloseOnExec(bell)
	le := binary.LittleEndian
	c := LaneConfig{
		Mailboxes:   int(le.Uint32(mem[offMailboxes:])),
		Completions: int(le.Uint32(mem[offCompletions:])),
		Releases:    int(le.Uint32(mem[offReleases:])),
		Answers:     int(le.Uint32(mem[offAnswers:])),
	}
	err = c.validate()
	switch {
	case le.Uint64(mem[offMagic:]) != laneMagic || le.Uint32(mem[offVersion:]) != laneVersion:
		err = fmt.Errorf("shm: descriptor %d is no lane of version %d", fd, laneVersion)
	case err == nil && c.size() != size:
		err = fmt.Errorf("shm: the lane has %d bytes, want %d", size, c.size())
	}
	if err != nil {
		return nil, errors.Join(err, (&Lane{mem: mem, fd: fd, bell: bell}).Close())
	}
	return layLane(mem, fd, bell, c), nil
}

func layLane(mem []byte, fd, bell int, c LaneConfig) *Lane {
	l := &Lane{
		mem: mem, fd: fd, bell: bell,
		mailboxes: c.Mailboxes,
		compMask:  uint64(c.Completions) - 1,
		relMask:   uint64(c.Releases) - 1,
		ansMask:   uint64(c.Answers) - 1,
		boxes:     laneHeader,
	}
	l.completions = l.boxes + c.Mailboxes*boxStride
	l.releases = l.completions + c.Completions*entrySize
	l.answers = (l.releases + c.Releases*8 + answerSize - 1) &^ (answerSize - 1)
	l.closed = l.u32(offClosed)
	l.compHead, l.compTail = l.u64(offCompHead), l.u64(offCompTail)
	l.relHead, l.relTail = l.u64(offRelHead), l.u64(offRelTail)
	l.ansHead, l.ansTail = l.u64(offAnsHead), l.u64(offAnsTail)
	l.ansWaiter = waiter{l.u32(offAnsWaiter)}
	l.compWaiter = waiter{l.u32(offCompWaiter)}
	l.fullWaiter = waiter{l.u32(offFullWaiter)}
	l.relWaiter = waiter{l.u32(offRelWaiter)}
	return l
}

func (l *Lane) u32(off int) *uint32 { return (*uint32)(unsafe.Pointer(&l.mem[off])) }

func (l *Lane) u64(off int) *uint64 { return (*uint64)(unsafe.Pointer(&l.mem[off])) }

// FD is the memfd to hand over; it stays the lane's.
func (l *Lane) FD() int { return l.fd }

// Bell is the eventfd to hand over; it stays the lane's.
func (l *Lane) Bell() int { return l.bell }

// ring wakes the reader of completions, if it sleeps.
func (l *Lane) ring() {
	if atomic.LoadUint32(l.compWaiter.word) != 0 {
		l.toll()
	}
}

// toll is ring whatever the word says: see waiter.rouse.
func (l *Lane) toll() {
	atomic.StoreUint32(l.compWaiter.word, 0)
	one := uint64(1)
	// It can't block (the bell is nonblocking) and fails only when it has rung 2^64
	// times unheard.
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(l.bell), uintptr(unsafe.Pointer(&one)), 8)
}

// listen waits until there is a result or the lane is shut, or until end, which is ErrTimeout;
// the zero time is no end. It may return early. The poller tells of each ring, so nobody
// reads the bell: the ring of results is looked at once the poller listens, and whoever
// has one after that rings.
func (l *Lane) listen(end time.Time) error {
	if err := l.open(); err != nil {
		return err
	}
	if !end.IsZero() {
		if err := l.ears.SetReadDeadline(end); err != nil {
			return fmt.Errorf("shm: bell: %w", err)
		}
	}
	l.slept = false
	err := l.hear.Read(l.heard)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = ErrTimeout
	} else if err != nil {
		err = fmt.Errorf("shm: bell: %w", err)
	}
	if !end.IsZero() {
		err = errors.Join(err, l.ears.SetReadDeadline(time.Time{}))
	}
	return err
}

// open takes the bell into the network poller, where it stays: a lane whose results are
// looked at by Poll and Arm alone never gets there.
func (l *Lane) open() (err error) {
	if l.ears != nil {
		return nil
	}
	l.ears = os.NewFile(uintptr(l.bell), "bell")
	if l.hear, err = l.ears.SyscallConn(); err != nil {
		return fmt.Errorf("shm: bell: %w", err)
	}
	return nil
}

// Arm lets the worker ring the bell with its next result. True: there is one already, or the
// lane is shut. One goroutine of the gateway calls it, and Poll.
func (l *Lane) Arm() bool {
	l.compWaiter.arm()
	return atomic.LoadUint64(l.compHead) != l.tail || l.isShut()
}

// news is what the poller asks before it sleeps, and after.
func (l *Lane) news(uintptr) bool {
	if l.slept {
		return true
	}
	l.slept = true
	return l.Arm()
}

// Mailboxes is how many there are.
func (l *Lane) Mailboxes() int { return l.mailboxes }

// Shut closes the lane for both sides: every mailbox closes, every sleeper wakes, and
// what waits returns ErrClosed. It may be called more than once and from any
// goroutine; Close must wait until none uses the lane any more.
func (l *Lane) Shut() {
	l.shut.Store(true)
	atomic.StoreUint32(l.closed, 1)
	for i := range l.mailboxes {
		l.CloseMailbox(i)
	}
	l.toll()
	l.fullWaiter.rouse()
	l.relWaiter.rouse()
	l.ansWaiter.rouse()
}

func (l *Lane) isShut() bool { return l.shut.Load() || atomic.LoadUint32(l.closed) != 0 }

// Close unmaps the lane. Nobody in this process may use it any more.
func (l *Lane) Close() error {
	var errs []error
	if l.mem != nil {
		if err := unix.Munmap(l.mem); err != nil {
			errs = append(errs, fmt.Errorf("shm: unmap: %w", err))
		}
		l.mem = nil
	}
	if l.fd >= 0 {
		if err := unix.Close(l.fd); err != nil {
			errs = append(errs, fmt.Errorf("shm: close: %w", err))
		}
		l.fd = -1
	}
	if l.ears != nil {
		errs = append(errs, l.ears.Close())
	} else if l.bell >= 0 {
		errs = append(errs, unix.Close(l.bell))
	}
	l.ears, l.bell = nil, -1
	return errors.Join(errs...)
}
