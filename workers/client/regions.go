package client

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
	workerpb "github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/shm"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// regionTable is the regions that workers shall have, through all of their lives.
type regionTable struct {
	mu     sync.Mutex
	serial uint64                 // guarded by mu
	open   map[uint32]*openRegion // guarded by mu: by slot
}

// openRegion is one region; a slot's next one has another serial.
type openRegion struct {
	*infer.Region
	serial uint64
}

func (t *regionTable) add(r *infer.Region) (*openRegion, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open = map[uint32]*openRegion{}
	}
	if t.open[r.Slot] != nil {
		return nil, infer.Errorf(infer.Internal, "slot %d has a shared memory region", r.Slot)
	}
	t.serial++
	o := &openRegion{r, t.serial}
	t.open[r.Slot] = o
	return o, nil
}

func (t *regionTable) remove(slot uint32) *openRegion {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.open[slot]
	delete(t.open, slot)
	return o
}

func (t *regionTable) all() []*openRegion {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*openRegion, 0, len(t.open))
	for _, o := range t.open {
		all = append(all, o)
	}
	return all
}

// regionSet is what one session's worker has opened, by slot.
type regionSet struct {
	mu     sync.Mutex
	opened map[uint32]uint64 // guarded by mu: serials
	pass   *os.File          // guarded by mu: where descriptors go to the worker; nil: nowhere
	token  uint64            // guarded by mu
}

func (s *regionSet) serial(slot uint32) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened[slot]
}

func (s *regionSet) set(o *openRegion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened == nil {
		s.opened = map[uint32]uint64{}
	}
	s.opened[o.Slot] = o.serial
}

func (s *regionSet) unset(slot uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.opened, slot)
}

// newPass makes the socket of descriptors and returns the worker's end of it.
func (s *regionSet) newPass() (int, error) {
	ours, theirs, err := shm.NewPass()
	if err != nil {
		return -1, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pass = os.NewFile(uintptr(ours), "regions")
	return theirs, nil
}

// send passes a descriptor and returns its number.
func (s *regionSet) send(f *os.File) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pass == nil {
		return 0, errLost()
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	s.token++
	if errControl := raw.Control(func(fd uintptr) { err = shm.PassFile(int(s.pass.Fd()), s.token, int(fd)) }); errControl != nil {
		return 0, errControl
	}
	return s.token, err
}

// last is the number of the descriptor that was passed last, 0 for none.
func (s *regionSet) last() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.token
}

func (s *regionSet) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pass == nil {
		return nil
	}
	err := s.pass.Close()
	s.pass = nil
	return err
}

// OpenRegion fits infer.Regions. A worker that is down opens it before it executes
// anything again.
func (w *Workers) OpenRegion(ctx context.Context, r *infer.Region) error {
	if r.Slot == 0 || r.Slot > infer.MaxRegions || (r.File == nil) == (r.CUDA == nil) {
		return infer.Errorf(infer.Internal, "shared memory region '%s' has slot %d", r.Name, r.Slot)
	}
	o, err := w.regions.add(r)
	if err != nil {
		return err
	}
	possible := false
	for _, k := range w.all() {
		if !k.takes(r) {
			continue
		}
		possible = true
		if err = k.withRegions(ctx, func(s *session) error { return s.openRegion(ctx, o, false) }); err != nil {
			break
		}
	}
	switch {
	case err != nil:
	case possible:
		return nil
	case r.CUDA != nil:
		err = infer.Errorf(infer.Unsupported, "failed to register CUDA shared memory region '%s': no worker of this host has GPU %d", r.Name, r.CUDA.Device)
	default:
		err = infer.Errorf(infer.Unsupported, "failed to register shared memory region '%s': no worker runs on this host", r.Name)
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.StartTimeout)
	defer cancel()
	return errors.Join(err, w.CloseRegion(clean, r.Slot))
}

// CloseRegion fits infer.Regions. When ctx ends first, the workers still hear of it and free
// the memory once nothing uses it, and the slot may be used again.
func (w *Workers) CloseRegion(ctx context.Context, slot uint32) error {
	o := w.regions.remove(slot)
	if o == nil {
		return infer.Errorf(infer.NotFound, "slot %d has no shared memory region", slot)
	}
	var gone []chan error
	for _, k := range w.all() {
		if k.takes(o.Region) {
			told := make(chan error, 1)
			w.forgetting.Go(func() { told <- k.forget(context.WithoutCancel(ctx), o) })
			gone = append(gone, told)
		}
	}
	var errs []error
	for _, told := range gone {
		select {
		case err := <-told:
			errs = append(errs, err)
		case <-ctx.Done():
			return errors.Join(append(errs, infer.Errorf(infer.Cancelled, "shared memory regions of a worker: %w", context.Cause(ctx)))...)
		}
	}
	return errors.Join(errs...)
}

// forgetTime is how long a worker may take for one call to close a region: until then
// nobody else changes its regions.
const forgetTime = 10 * time.Second

// forget makes the worker close a region, however long it takes until it hears of it:
// what nobody told it of would stay mapped for good. It ends with the worker at the latest.
func (w *worker) forget(ctx context.Context, o *openRegion) error {
	for {
		again := false
		err := w.withRegions(ctx, func(s *session) error {
			ctx, cancel := context.WithTimeout(ctx, forgetTime)
			defer cancel()
			err := s.closeRegion(ctx, o)
			again = infer.CodeOf(err) == infer.Cancelled && !s.isLost()
			return err
		})
		if !again {
			return err
		}
	}
}

// takes says that a worker can have a region: it is of this host, and has the device.
func (w *worker) takes(r *infer.Region) bool {
	if w.local == nil {
		if _, ok := w.far.socket(); !ok {
			return false
		}
	}
	if r.CUDA == nil {
		return true
	}
	for _, d := range w.greeting().GetDevices() {
		if d.Kind == workerpb.Device_GPU && int(d.Id) == r.CUDA.Device {
			return true
		}
	}
	return false
}

// Reaches says that all instances of the version read and write the region of a slot where
// it lies: their workers are of this host, and own its device.
func (v *Version) Reaches(slot uint32) bool {
	if slot > infer.MaxRegions {
		return v.reachesResident(slot)
	}
	if len(v.groups) == 0 {
		return false
	}
	t := &v.groups[0].worker.owner.regions
	t.mu.Lock()
	o := t.open[slot]
	t.mu.Unlock()
	if o == nil {
		return false
	}
	for _, g := range v.groups {
		if !g.worker.takes(o.Region) {
			return false
		}
	}
	return true
}

// withRegions calls f with the session, if the worker is up, while nobody else changes its
// regions. A worker that is lost meanwhile is as one that is down.
func (w *worker) withRegions(ctx context.Context, f func(s *session) error) error {
	select {
	case <-w.regionTurn:
		defer func() { w.regionTurn <- struct{}{} }()
	case <-ctx.Done():
		return infer.Errorf(infer.Cancelled, "shared memory regions of a worker: %w", context.Cause(ctx))
	}
	w.mu.Lock()
	s := w.session
	w.mu.Unlock()
	if s == nil {
		return nil
	}
	err := f(s)
	if err != nil && lostDuring(s, err) {
		return nil
	}
	return err
}

// beginWithRegions publishes a session once its worker has all regions.
func (w *worker) beginWithRegions(ctx context.Context, s *session) []*group {
	<-w.regionTurn
	defer func() { w.regionTurn <- struct{}{} }()
	ctx, cancel := context.WithTimeout(ctx, w.owner.cfg.StartTimeout) // nobody looks after its health yet
	defer cancel()
	for _, o := range w.owner.regions.all() {
		if !w.takes(o.Region) {
			continue
		}
		if err := s.openRegion(ctx, o, true); err != nil {
			w.log.Error("a shared memory region could not be opened again", "region", o.Name, "error", err)
			if s.isLost() {
				break
			}
		}
	}
	w.showAnswers(s)
	return w.begin(s)
}

// openRegion makes the worker open a region. The caller holds the worker's turn.
func (s *session) openRegion(ctx context.Context, o *openRegion, again bool) error {
	if s.regions.serial(o.Slot) == o.serial {
		return nil
	}
	err := s.callOpen(ctx, o, again)
	if infer.CodeOf(err) == infer.AlreadyExists {
		// A call that was given up opened or did not close it. The slot is ours to give.
		if err = s.callClose(ctx, o.Slot); err == nil {
			err = s.callOpen(ctx, o, again)
		}
	}
	if err == nil || infer.CodeOf(err) == infer.Cancelled { // then it may be open, and has to be closed
		s.regions.set(o)
	}
	return err
}

func (s *session) callOpen(ctx context.Context, o *openRegion, again bool) error {
	m := &workerpb.OpenRegionRequest{Slot: o.Slot, Name: o.Name, Offset: o.Offset, ByteSize: o.Size, Again: again}
	if o.CUDA != nil {
		m.CudaHandle, m.DeviceId = o.CUDA.Raw[:], int32(o.CUDA.Device)
	} else {
		var err error
		if m.Token, err = s.regions.send(o.File); errors.Is(err, unix.EAGAIN) {
			// Full of descriptors whose calls were given up: closing drops them.
			if err = s.callClose(ctx, o.Slot); err == nil {
				m.Token, err = s.regions.send(o.File)
			}
		}
		if err != nil {
			return err
		}
	}
	if _, err := s.client.OpenRegion(ctx, m); err != nil {
		return regionError(s, err)
	}
	return nil
}

// regionError keeps what shows that the worker was lost.
func regionError(s *session, err error) error {
	if lostDuring(s, err) {
		return errLost()
	}
	return fromStatus(err)
}

// closeRegion makes the worker forget a region, if it has it.
func (s *session) closeRegion(ctx context.Context, o *openRegion) error {
	if s.regions.serial(o.Slot) != o.serial {
		return nil
	}
	err := s.callClose(ctx, o.Slot)
	if err == nil {
		s.regions.unset(o.Slot)
	}
	return err
}

func (s *session) callClose(ctx context.Context, slot uint32) error {
	_, err := s.client.CloseRegion(ctx, &workerpb.CloseRegionRequest{Slot: slot, Token: s.regions.last()})
	if err == nil || status.Code(err) == codes.NotFound {
		return nil
	}
	return regionError(s, err)
}

// partSize is how much of a region travels in one message.
const partSize = 4 << 20

// ReadPlace fits infer.Regions. The buffer is in the request arena.
func (w *Workers) ReadPlace(ctx context.Context, p infer.Place) (*infer.Buffer, error) {
	if p.IsResident() {
		return w.readResident(ctx, p)
	}
	mem, err := w.memory.Alloc(p.Size)
	if err != nil {
		return nil, err
	}
	b := infer.NewBuffer(mem, func(b *infer.Buffer) { w.memory.Free(b.Data) })
	err = w.parts(ctx, p, p.Size, func(s *session, off, n int64) error {
		m, err := s.client.ReadRegion(ctx, &workerpb.ReadRegionRequest{Slot: p.Region, Offset: p.Offset + off, ByteSize: n})
		if err != nil {
			return regionError(s, err)
		}
		if int64(len(m.Data)) != n {
			return infer.Errorf(infer.Internal, "a worker read %d bytes of a region, want %d", len(m.Data), n)
		}
		copy(mem[off:], m.Data)
		return nil
	})
	if err != nil {
		b.Release()
		return nil, err
	}
	return b, nil
}

// WritePlace fits infer.Regions.
func (w *Workers) WritePlace(ctx context.Context, p infer.Place, data []byte) error {
	if p.IsResident() {
		return infer.Errorf(infer.Internal, "a resident tensor can't be written")
	}
	if int64(len(data)) > p.Size {
		return infer.Errorf(infer.Internal, "%d bytes don't fit into a place of %d", len(data), p.Size)
	}
	return w.parts(ctx, p, int64(len(data)), func(s *session, off, n int64) error {
		_, err := s.client.WriteRegion(ctx, &workerpb.WriteRegionRequest{Slot: p.Region, Offset: p.Offset + off, Data: data[off : off+n]})
		if err != nil {
			return regionError(s, err)
		}
		return nil
	})
}

// parts calls f for each message's part of n bytes at a place, again where a worker is lost.
func (w *Workers) parts(ctx context.Context, p infer.Place, n int64, f func(s *session, off, n int64) error) error {
	const tries = 3
	var s *session
	var err error
	for at, try := int64(0), 0; at < n || at == 0; {
		if s == nil {
			if s, err = w.sessionOf(ctx, p.Region); err != nil {
				return err
			}
		}
		part := min(n-at, partSize)
		err = f(s, at, part)
		switch {
		case err == nil && part == 0:
			return nil
		case err == nil:
			at += part
		case errors.Is(err, infer.ErrWorkerLost) && try < tries:
			try++
			s = nil
		default:
			return err
		}
	}
	return nil
}

// sessionOf finds a worker that has a region, and waits for one that shall have it.
func (w *Workers) sessionOf(ctx context.Context, slot uint32) (*session, error) {
	w.regions.mu.Lock()
	o := w.regions.open[slot]
	w.regions.mu.Unlock()
	if o == nil {
		return nil, infer.Errorf(infer.NotFound, "slot %d has no shared memory region", slot)
	}
	var wait *worker
	for _, k := range w.all() {
		if !k.takes(o.Region) {
			continue
		}
		k.mu.Lock()
		s := k.session
		k.mu.Unlock()
		if s != nil && !s.isLost() && s.regions.serial(slot) == o.serial {
			return s, nil
		}
		if wait == nil {
			wait = k
		}
	}
	if wait == nil {
		return nil, infer.Errorf(infer.Unsupported, "no worker of this host has shared memory region '%s'", o.Name)
	}
	s, err := wait.current(ctx)
	if err != nil {
		return nil, err
	}
	if s.regions.serial(slot) != o.serial {
		return nil, infer.Errorf(infer.Unavailable, "shared memory region '%s' could not be opened again", o.Name)
	}
	return s, nil
}
