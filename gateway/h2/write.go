package h2

import (
	"errors"
	"io"
	"net"
	"runtime"
	"slices"

	"google.golang.org/grpc/mem"

	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/infer"
)

var errSilent = errors.New("h2: the peer is gone: it takes or answers nothing")

// output is what a connection has to write: small things one behind the other in small,
// and between them large things where they lie.
type output struct {
	small    []byte
	mark     int      // what of small stands in pieces
	pieces   [][]byte // before small[mark:]
	owned    []mem.BufferSlice
	told     []*Stream // whose calls' Sent is called when all of it was written
	controls int       // frames about nothing of ours, for crowdedLocked
}

func (o *output) empty() bool { return len(o.small) == 0 && len(o.pieces) == 0 }

// refer adds b, which must not change until it is written.
func (o *output) refer(b []byte) {
	if len(o.small) > o.mark {
		o.pieces = append(o.pieces, o.small[o.mark:len(o.small):len(o.small)])
		o.mark = len(o.small)
	}
	o.pieces = append(o.pieces, b)
}

// drop frees what will not be written, and makes o empty. It may be called with a lock
// held.
func (o *output) drop() {
	for i := range o.owned {
		o.owned[i].Free()
		o.owned[i] = nil
	}
	clear(o.pieces)
	if len(o.told) > 0 { // now that nothing of them is looked at: they may be other calls at once
		go tell(o.told)
		o.told = nil
	}
	if cap(o.small) > maxKept {
		o.small = nil
	}
	o.small, o.mark, o.pieces, o.owned, o.controls = o.small[:0], 0, o.pieces[:0], o.owned[:0], 0
}

func tell(streams []*Stream) {
	for _, st := range streams {
		st.call.Sent()
	}
}

// maxKept bounds the memory that an idle connection keeps for its output.
const maxKept = 64 << 10

// write writes all of o to nc.
func (o *output) write(nc net.Conn) error {
	if len(o.pieces) == 0 {
		_, err := nc.Write(o.small)
		return err
	}
	bufs := o.all()
	_, err := bufs.WriteTo(nc)
	return err
}

// all is o in pieces. They are o.pieces' own, which is not looked at again before drop.
func (o *output) all() net.Buffers {
	if len(o.small) > o.mark {
		o.pieces = append(o.pieces, o.small[o.mark:])
	}
	return o.pieces
}

// size is how many bytes there are, before all is called.
func (o *output) size() int {
	n := len(o.small) - o.mark
	for _, b := range o.pieces {
		n += len(b)
	}
	return n
}

// try writes what the socket takes of o, if that does not take too long. The rest is nil
// when that is all.
func (o *output) try(c *conn, t *listen.Trier, fd int) (rest net.Buffers, err error) {
	size := o.size()
	begin, ok := c.at.Takes(size)
	if !ok {
		return o.all(), nil
	}
	rest, err = o.put(c, t, fd, size)
	c.at.Took(begin)
	return rest, err
}

// put is try, and takes its time.
func (o *output) put(c *conn, t *listen.Trier, fd, size int) (rest net.Buffers, err error) {
	if len(o.pieces) == 0 {
		c.one[0] = o.small
		n, err := put(t, fd, c.one[:])
		c.one[0] = nil
		if err != nil || n == size {
			return nil, err
		}
		return net.Buffers{o.small[n:]}, nil
	}
	bufs := o.all()
	n, err := put(t, fd, bufs)
	if err != nil || n == size {
		return nil, err
	}
	return listen.Rest(bufs, n), nil
}

// put writes what a socket takes: the bare one, or t's.
func put(t *listen.Trier, fd int, bufs [][]byte) (int, error) {
	if fd >= 0 {
		return listen.Send(fd, bufs...)
	}
	return t.Write(bufs...)
}

// flush writes what is queued, unless another goroutine is at it: that one will. With
// gather, others that are about to queue something get their turn first. It must be
// called without locks, and not by who must not block: see Flush.
func (c *conn) flush(gather bool) {
	if !c.claim() {
		return
	}
	if gather {
		runtime.Gosched()
	}
	c.writeAll(false)
}

// Flush writes what the socket takes at once, and leaves what it does not take to a
// goroutine. The reading goroutine writes by it, and who reads results.
func (c *conn) Flush() {
	c.mu.Lock()
	if c.try == nil && c.fd < 0 {
		c.asideLocked()
		c.mu.Unlock()
		return
	}
	mine := c.claimLocked()
	c.mu.Unlock()
	if mine {
		c.writeAll(true)
	}
}

// claim takes the right to write; false: another has it, or nothing may be written.
func (c *conn) claim() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.claimLocked()
}

func (c *conn) claimLocked() bool {
	if c.flushing || c.ended != nil || !c.ready {
		return false
	}
	c.flushing = true
	c.flushers.Add(1)
	return true
}

// asideLocked is flush on another goroutine.
func (c *conn) asideLocked() {
	if c.flushing || c.ended != nil || !c.ready {
		return
	}
	if c.pumpLocked(); c.out.empty() && !c.finishedLocked() {
		c.out.drop() // answers of calls that were reset
		return
	}
	c.flushing = true
	c.flushers.Add(1)
	go c.writeAll(false)
	c.at.Burst().Woke()
}

// writeAll writes until nothing is queued. c.flushing is its token, and one of flushers.
// With try it writes what the socket takes at once, and gives token and rest to a
// goroutine when it is full.
func (c *conn) writeAll(try bool) {
	c.mu.Lock()
	for {
		c.pumpLocked()
		if c.ended != nil || c.out.empty() {
			break
		}
		batch := c.out
		c.out, c.spare = c.spare, output{}
		c.writing = infer.Now()
		if c.waiting > 0 {
			c.room.Broadcast()
		}
		nc, t, fd := c.nc, c.try, c.fd
		c.bare = fd >= 0
		c.mu.Unlock()
		var err error
		if fd >= 0 || try && t != nil { // t is nil where the socket could not be had back from the loop
			var rest net.Buffers
			if rest, err = batch.try(c, t, fd); len(rest) > 0 && try {
				go c.writeRest(batch, rest)
				c.at.Burst().Woke()
				return
			} else if len(rest) > 0 {
				c.unbare()
				_, err = rest.WriteTo(c.solid())
			}
		} else {
			err = batch.write(nc)
		}
		if !c.written(&batch, err) {
			break
		}
	}
	c.endWriting()
}

// writeRest goes on where a socket was full.
func (c *conn) writeRest(batch output, rest net.Buffers) {
	c.unbare()
	_, err := rest.WriteTo(c.solid())
	if c.written(&batch, err) {
		c.mu.Unlock()
		c.writeAll(false)
		return
	}
	c.endWriting()
}

// unbare ends a write to the bare socket that did not take all.
func (c *conn) unbare() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bareDoneLocked()
}

// written ends a write, and takes the lock. False: it failed.
func (c *conn) written(batch *output, err error) bool {
	told := batch.told
	batch.told = nil
	batch.drop()
	free := told[:0]
	for _, st := range told { // they may be other calls after this
		if st.sent() {
			free = append(free, st)
		}
	}
	c.mu.Lock()
	c.reuseLocked(free)
	clear(told)
	batch.told = told[:0]
	c.writing = 0
	c.spare = *batch
	c.bareDoneLocked()
	if err != nil {
		c.mu.Unlock()
		c.close(err)
		c.mu.Lock()
	}
	return err == nil
}

// endWriting gives the token back, and the lock.
func (c *conn) endWriting() {
	c.flushing = false
	if c.ended != nil || c.out.empty() {
		c.out.drop() // also answers of calls that were reset
	}
	if c.waiting > 0 {
		c.room.Broadcast()
	}
	over := c.ended == nil && c.finishedLocked()
	c.mu.Unlock()
	if over {
		c.finish(io.EOF)
	}
	c.flushers.Done()
}

// waitLocked waits for news of the writer.
func (c *conn) waitLocked() {
	c.waiting++
	c.room.Wait()
	c.waiting--
}

// backlog is how much may wait to be written before the reader waits too: a peer that
// asks and takes no answers is heard no more until it does, or is cut off.
const backlog = 1 << 20

// makeRoomLocked holds the reader while too much waits to be written; a loop leaves it to
// the connection's goroutine.
func (c *conn) makeRoomLocked() {
	full := func() bool { return len(c.out.small) > backlog && c.ended == nil && !c.turning }
	if full() {
		c.mu.Unlock()
		c.burst.Close()
		c.mu.Lock()
	}
	for full() {
		c.asideLocked()
		c.waitLocked()
	}
}

// turn is how much of one stream goes before the next one's turn, and burst how much
// one write takes up before control frames get theirs.
const (
	turn  = 64 << 10
	burst = 1 << 20
)

// pumpLocked moves what streams have to the output, as far as the windows let it, in
// turns.
func (c *conn) pumpLocked() {
	moved := 0
	for moved < burst && c.sendLeft > 0 && len(c.sending) > 0 {
		progress, done := false, len(c.sending)
		kept := c.sending[:0]
		for i, st := range c.sending {
			if moved >= burst {
				done = i
				break
			}
			n := c.moveLocked(st, turn)
			moved += n
			progress = progress || n > 0 || !st.queued
			if st.queued {
				kept = append(kept, st)
			}
		}
		// those that had no turn are the next
		had := len(kept)
		kept = append(kept, c.sending[done:]...)
		clear(c.sending[len(kept):])
		c.sending = kept
		if had < len(kept) {
			rotate(kept, had)
		}
		if !progress {
			return
		}
	}
}

// rotate moves the first n to the end.
func rotate(s []*Stream, n int) {
	slices.Reverse(s[:n])
	slices.Reverse(s[n:])
	slices.Reverse(s)
}

// moveLocked frames up to most bytes of a stream's message; when none is left it ends
// the stream, or lets its handler send more.
func (c *conn) moveLocked(st *Stream, most int) int {
	o := &st.out
	moved := 0
	for o.left > 0 && moved < most {
		n := min(o.left, most-moved, c.peerFrame, int(max(min(c.sendLeft, st.sendLeft), 0)))
		if n == 0 {
			break
		}
		c.out.small = appendFrame(c.out.small, n, frameData, 0, st.id)
		c.takeLocked(o, n)
		o.left -= n
		c.sendLeft -= int64(n)
		st.sendLeft -= int64(n)
		moved += n
		c.granted = min(c.granted+grants, maxGrants)
	}
	if moved > 0 {
		c.strikesOK, c.pings = true, 0
		c.moved += int64(moved)
		// A window that is opened by a byte at a time is no progress.
		if st.steps += moved; st.steps >= turn {
			st.moved, st.steps = infer.Now(), 0
		}
	}
	if o.left > 0 {
		return moved
	}
	st.queued = false
	if o.parts != nil {
		c.out.owned = append(c.out.owned, o.parts)
		o.parts = nil
	}
	c.toldLocked(st)
	if o.sent != nil {
		close(o.sent)
		o.sent = nil
	}
	if o.trailer != nil {
		c.endLocked(st, o.trailer)
	}
	return moved
}

// A peer may send so many window updates for each DATA frame that it gets.
const (
	grants    = 10
	maxGrants = 1 << 20
)

// byReference is the size from which a part is written from where it lies.
const byReference = 4 << 10

// takeLocked puts the next n bytes of a message behind their frame's header.
func (c *conn) takeLocked(o *outgoing, n int) {
	for n > 0 {
		var b []byte
		if o.at < 0 {
			b = o.prefix[o.offset:]
		} else {
			b = o.parts[o.at].ReadOnlyData()[o.offset:]
		}
		if len(b) > n {
			b = b[:n]
			o.offset += n
		} else {
			o.at, o.offset = o.at+1, 0
		}
		n -= len(b)
		if len(b) >= byReference {
			c.out.refer(b)
			continue
		}
		c.out.small = append(c.out.small, b...)
	}
}

// endLocked sends the trailers, and a reset where the client is still sending, and
// forgets the stream.
func (c *conn) endLocked(st *Stream, block []byte) {
	if c.shrink {
		block = append(c.appendShrink(nil), block...)
	}
	c.out.small = c.appendBlock(c.out.small, st.id, flagEndStream, block)
	c.overLocked(st)
}

// removeLocked forgets a stream; nothing more is sent on it.
func (c *conn) removeLocked(st *Stream) {
	if st.gone {
		return
	}
	st.gone = true
	c.streams.remove(st.id)
	if st.queued {
		st.life.Or(callBroken) // who ended it may look at it once more
		st.queued = false
		for i, other := range c.sending {
			if other == st {
				c.sending = append(c.sending[:i], c.sending[i+1:]...)
				break
			}
		}
	}
	// what stands in the output already may be a piece of the parts
	if st.out.parts != nil {
		c.out.owned = append(c.out.owned, st.out.parts)
		st.out.parts = nil
	}
	c.toldLocked(st)
	st.out.drop()
}

// toldLocked tells the call of a message, of which nothing is left to be queued, when
// what is queued was written.
func (c *conn) toldLocked(st *Stream) {
	if st.out.tell {
		st.out.tell = false
		c.out.told = append(c.out.told, st)
	}
}

// drop lets go of what was not sent.
func (o *outgoing) drop() {
	if o.parts != nil {
		o.parts.Free()
		o.parts = nil
	}
	o.left = 0
	if o.sent != nil {
		close(o.sent)
		o.sent = nil
	}
}
