package listen

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"
)

// failing is a listener whose first accepts fail.
type failing struct {
	net.Listener
	errs []error
}

func (f *failing) Accept() (net.Conn, error) {
	if len(f.errs) > 0 {
		err := f.errs[0]
		f.errs = f.errs[1:]
		return nil, err
	}
	return f.Listener.Accept()
}

type transient struct{ error }

func (transient) Temporary() bool { return true }

func TestAccepted(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := NewAccepted[net.Conn](slog.New(slog.DiscardHandler))
	ended := make(chan error, 1)
	hello := func(c net.Conn) bool { _, _ = io.Copy(c, c); _ = c.Close(); return false }
	go func() {
		ended <- a.Serve(&failing{l, []error{transient{errors.New("too many")}}}, func(c net.Conn) net.Conn { return c }, hello)
	}()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(client, make([]byte, 1)); err != nil {
		t.Fatal(err) // it was accepted after the failure
	}
	if n := len(a.Stop()); n != 1 || len(a.All()) != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
	select {
	case <-a.None():
		t.Error("none, while there is one")
	default:
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.None():
	case <-time.After(10 * time.Second):
		t.Error("the connection did not end")
	}
	a.Wait()
	a.Stop()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Serve(other, func(c net.Conn) net.Conn { return c }, hello); err != nil {
		t.Errorf("Serve after Stop: %v", err)
	}
	if _, err := other.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("its listener: %v", err)
	}
}

func TestAcceptedFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := NewAccepted[net.Conn](slog.New(slog.DiscardHandler))
	broken := errors.New("broken")
	if err := a.Serve(&failing{l, []error{broken}}, nil, nil); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}
