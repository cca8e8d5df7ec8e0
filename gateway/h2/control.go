package h2

import (
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// control queues a frame about a stream.
func (c *conn) control(add func([]byte, uint32, errCode) []byte, stream uint32, code errCode) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.small = add(c.out.small, stream, code)
	c.news = true
	return c.crowdedLocked()
}

// maxUnread bounds what is queued for a peer that does not read.
const maxUnread = 1 << 20

// crowdedLocked notices a peer that makes us answer and reads no answer.
func (c *conn) crowdedLocked() error {
	if c.out.controls++; c.out.controls > maxUnread/frameHeader {
		return &connError{codeEnhanceYourCalm, "answers are not read"}
	}
	return nil
}

func (c *conn) resetFrame(h head, b []byte) error {
	switch {
	case len(b) != 4:
		return &connError{codeFrameSize, "RST_STREAM frame of a wrong size"}
	case h.stream == 0 || h.stream > c.lastID || h.stream%2 == 0:
		return &connError{codeProtocol, "RST_STREAM on an idle stream"}
	}
	c.mu.Lock()
	st := c.streams.get(h.stream)
	if st != nil {
		c.removeLocked(st)
	}
	c.mu.Unlock()
	if in := c.receiving.get(h.stream); in != nil {
		c.abandon(in, context.Canceled)
	}
	if st != nil {
		st.End(context.Canceled)
	}
	c.late.forget(h.stream)
	c.news = true // a drained connection may be over
	return c.guard.reset()
}

func (c *conn) windowFrame(h head, b []byte) error {
	if len(b) != 4 {
		return &connError{codeFrameSize, "WINDOW_UPDATE frame of a wrong size"}
	}
	n := int64(binary.BigEndian.Uint32(b) & maxWindow)
	if n == 0 && h.stream == 0 {
		return &connError{codeProtocol, "WINDOW_UPDATE of 0"}
	}
	if h.stream > c.lastID || h.stream > 0 && h.stream%2 == 0 {
		return &connError{codeProtocol, "WINDOW_UPDATE on an idle stream"}
	}
	var reset *Stream
	c.mu.Lock()
	err := c.windowLocked(h, n, &reset)
	c.mu.Unlock()
	if reset != nil {
		reset.End(context.Canceled)
	}
	return err
}

// windowLocked opens a window by n bytes. A call that it resets is left to its caller.
func (c *conn) windowLocked(h head, n int64, reset **Stream) error {
	if h.stream == 0 {
		if c.sendLeft += n; c.sendLeft > maxWindow {
			return &connError{codeFlowControl, "connection window too large"}
		}
	} else if st := c.streams.get(h.stream); st != nil {
		if st.sendLeft += n; n == 0 || st.sendLeft > maxWindow {
			code := codeFlowControl
			if n == 0 {
				code = codeProtocol
			}
			c.resetLocked(st, code)
			*reset = st
			c.news = true
			return c.guard.reset()
		}
	}
	if len(c.sending) > 0 {
		c.news = true
		return nil
	}
	if c.granted > 0 {
		c.granted--
		return nil
	}
	return c.guard.control() // an update that nothing waits for
}

// resetLocked ends a call by a reset of ours.
func (c *conn) resetLocked(st *Stream, code errCode) {
	c.out.small = appendReset(c.out.small, st.id, code)
	if !st.remoteEnd.Load() {
		c.stale = append(c.stale, st.id)
	}
	c.removeLocked(st)
}

func (c *conn) settings(h head, b []byte) error {
	switch {
	case h.stream != 0:
		return &connError{codeProtocol, "SETTINGS on a stream"}
	case h.has(flagAck) && len(b) > 0, len(b)%6 != 0:
		return &connError{codeFrameSize, "SETTINGS frame of a wrong size"}
	case h.has(flagAck):
		return nil
	}
	for range len(b) / (6 * fewSettings) { // a long list counts as several frames
		if err := c.guard.control(); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	window := c.peerInit
	for ; len(b) > 0; b = b[6:] {
		if err := c.settingLocked(binary.BigEndian.Uint16(b), binary.BigEndian.Uint32(b[2:]), &window); err != nil {
			return err
		}
	}
	if err := c.windowsLocked(window); err != nil {
		return err
	}
	c.out.small = appendFrame(c.out.small, 0, frameSettings, flagAck, 0)
	c.news = true
	return c.crowdedLocked()
}

// fewSettings is more than there are.
const fewSettings = 32

// windowsLocked gives every stream another initial window: once for each frame, since a
// frame has room for thousands of such settings.
func (c *conn) windowsLocked(window int64) error {
	delta := window - c.peerInit
	if delta == 0 {
		return nil
	}
	c.peerInit = window
	for _, st := range c.streams.all() {
		if st.sendLeft += delta; st.sendLeft > maxWindow {
			return &connError{codeFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE makes a window too large"}
		}
	}
	return nil
}

func (c *conn) settingLocked(id uint16, value uint32, window *int64) error {
	switch id {
	case settingTableSize:
		if value < tableSize && !c.shrunk {
			c.shrunk, c.shrink = true, true
		}
	case settingPush:
		if value > 1 {
			return &connError{codeProtocol, "SETTINGS_ENABLE_PUSH is not 0 or 1"}
		}
	case settingWindow:
		if value > maxWindow {
			return &connError{codeFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE too large"}
		}
		*window = int64(value)
	case settingFrame:
		if value < minMaxFrame || value > maxMaxFrame {
			return &connError{codeProtocol, "SETTINGS_MAX_FRAME_SIZE out of range"}
		}
		c.peerFrame = int(value)
	}
	// Unknown settings are ignored (RFC 9113, 6.5.2).
	return nil
}

func (c *conn) ping(h head, b []byte) error {
	switch {
	case h.stream != 0:
		return &connError{codeProtocol, "PING on a stream"}
	case len(b) != 8:
		return &connError{codeFrameSize, "PING frame of a wrong size"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.has(flagAck) {
		c.pinged = false
		if [8]byte(b) == drainPing && c.draining {
			c.lastWordLocked()
			c.news = true
		}
		return nil
	}
	idle := c.streams.n == 0 && !c.s.cfg.PermitWithoutCalls
	if err := c.guard.ping(infer.Now(), c.strikesOK, idle); err != nil {
		return err
	}
	c.strikesOK = false
	c.out.small = appendPing(c.out.small, flagAck, [8]byte(b))
	c.news = true
	return c.crowdedLocked()
}

// goAway tells the peer why the connection ends, and ends it.
func (c *conn) goAway(fault *connError) {
	// The peer may not read; it gets little time, also for what is being written.
	if err := c.nc.SetWriteDeadline(time.Now().Add(lastWords)); err != nil {
		return
	}
	c.mu.Lock()
	if c.ended != nil {
		c.mu.Unlock()
		return
	}
	c.out.small = appendGoAway(c.out.small, c.lastID, fault.code, fault.text)
	c.lastOK = c.lastID
	for c.ended == nil && (c.flushing || !c.out.empty()) {
		if c.flushing { // whoever writes writes this too
			c.waitLocked()
			continue
		}
		c.mu.Unlock()
		c.flush(false)
		c.mu.Lock()
	}
	c.mu.Unlock()
	c.finish(fault)
}

// lastWords is the time that the text of a fault has to be sent.
const lastWords = time.Second

// drainPing is the ping whose answer says that the peer has read the first GOAWAY.
var drainPing = [8]byte{'g', 'o', 'a', 'w', 'a', 'y', '!', '!'}

// drain tells the peer to open no further call, in two steps, so that calls which are
// on their way are still served (RFC 9113, 6.8), and ends the connection when the last
// call has ended. It may be called from any goroutine, and again.
func (c *conn) drain() {
	c.mu.Lock()
	if c.draining || c.ended != nil {
		c.mu.Unlock()
		return
	}
	if !c.ready { // it has no call, and nothing can be said yet
		c.mu.Unlock()
		c.close(errStopped)
		return
	}
	c.draining = true
	c.out.small = appendGoAway(c.out.small, maxStreamID, codeNo, "")
	c.out.small = appendPing(c.out.small, 0, drainPing)
	time.AfterFunc(drainWait, func() {
		c.mu.Lock()
		c.lastWordLocked()
		c.mu.Unlock()
		c.flush(false)
	})
	c.mu.Unlock()
	c.flush(false)
}

// drainWait is the longest wait for the answer to drainPing.
const drainWait = time.Second

// lastWordLocked is the second GOAWAY: calls above the last one are refused.
func (c *conn) lastWordLocked() {
	if c.lastOK != maxStreamID || c.ended != nil {
		return
	}
	c.lastOK = c.opened.Load()
	c.out.small = appendGoAway(c.out.small, c.lastOK, codeNo, "")
}

// finishedLocked says that a drained connection has nothing left to do.
func (c *conn) finishedLocked() bool {
	return c.draining && c.lastOK != maxStreamID && c.streams.n == 0 && c.out.empty()
}

// startTimersLocked begins keepalive, the watch for stuck writes, and the connection's
// age.
func (c *conn) startTimersLocked() {
	cfg := &c.s.cfg
	c.alive = time.AfterFunc(c.watchEvery(), c.watch)
	if age := cfg.MaxConnectionAge; age > 0 {
		// a tenth either way, so that clients which came together don't leave together
		age += time.Duration((rand.Float64()*2 - 1) * float64(age) / 10)
		c.age = time.AfterFunc(age, func() {
			c.drain()
			if cfg.MaxConnectionAgeGrace > 0 {
				c.mu.Lock()
				defer c.mu.Unlock()
				if c.ended == nil {
					c.age = time.AfterFunc(cfg.MaxConnectionAgeGrace, func() { c.close(io.EOF) })
				}
			}
		})
	}
}

func (c *conn) watchEvery() time.Duration {
	every := c.s.cfg.WriteTimeout / 2
	for _, d := range []time.Duration{c.s.cfg.KeepaliveTime, c.s.cfg.KeepaliveTimeout} {
		if c.s.cfg.KeepaliveTime > 0 && d > 0 {
			every = min(every, d/2)
		}
	}
	return max(every, time.Millisecond)
}

// keepsAliveLocked says that a silent peer may be pinged now.
// Source: --grpc-keepalive-permit-without-calls and --grpc-http2-max-pings-without-data of
// the original, which are channel arguments of gRPC's C core.
func (c *conn) keepsAliveLocked() bool {
	cfg := &c.s.cfg
	return cfg.KeepaliveTime > 0 && (cfg.PermitWithoutCalls || c.streams.n > 0) &&
		(cfg.MaxPingsWithoutData == 0 || c.pings < cfg.MaxPingsWithoutData)
}

// kick wakes the reading goroutine.
func (c *conn) kick() error {
	c.mu.Lock()
	c.driveLocked()
	nc := c.nc
	c.kicks = nc != nil
	c.mu.Unlock()
	if nc == nil {
		return nil // a loop is at it, or it is written to: it is not silent
	}
	return nc.SetReadDeadline(time.Unix(1, 0))
}

// watch is the connection's timer: it cuts off a peer that takes nothing, resets calls
// whose answers are not taken, and pings a silent peer.
func (c *conn) watch() {
	cfg, at := &c.s.cfg, infer.Now()
	c.mu.Lock()
	if c.ended != nil {
		c.mu.Unlock()
		return
	}
	stuck := c.writing != 0 && at-c.writing > int64(cfg.WriteTimeout)
	var late []*Stream
	for _, st := range c.sending {
		if at-st.moved > int64(cfg.WriteTimeout) {
			late = append(late, st)
		}
	}
	for _, st := range late {
		c.resetLocked(st, codeCancel)
	}
	silent := at - c.heard.Load()
	dead := c.pinged && min(silent-int64(cfg.KeepaliveTime), at-c.pingedAt) > int64(cfg.KeepaliveTimeout)
	if c.keepsAliveLocked() && silent > int64(cfg.KeepaliveTime) && !c.pinged {
		c.pinged, c.pingedAt = true, at
		c.pings++
		c.out.small = appendPing(c.out.small, 0, [8]byte{})
	}
	if !stuck && !dead {
		c.alive.Reset(c.watchEvery())
	}
	if silent > int64(c.watchEvery()) && c.streams.n == 0 {
		c.free = nil // it rests
	}
	kick := silent > int64(c.watchEvery()) && c.streams.n+len(c.stale) > 0
	c.mu.Unlock()
	for _, st := range late {
		st.End(context.Canceled)
	}
	if stuck || dead {
		c.close(errSilent)
		return
	}
	if kick {
		// The reader sleeps: it may hold what is over, or half a message that does not
		// go on.
		if err := c.kick(); err != nil {
			c.close(err)
			return
		}
	}
	c.flush(false)
}
