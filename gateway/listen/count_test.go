package listen

import (
	"io"
	"net"
	"testing"
)

// Connections count while they are open, with a bound on them and without.
func TestCount(t *testing.T) {
	for name, most := range map[string]int{"bounded": 4, "unbounded": 0} {
		t.Run(name, func(t *testing.T) {
			var count Count
			open, err := Open(t.Context(), Config{Address: "127.0.0.1", MaxConnections: most, Count: &count})
			if err != nil {
				t.Fatal(err)
			}
			defer open[0].Close()
			var d net.Dialer
			for i := range uint64(3) {
				client, err := d.DialContext(t.Context(), "tcp", open[0].Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				c, err := open[0].Accept()
				if err != nil {
					t.Fatal(err)
				}
				if n, all := count.Open.Load(), count.Accepted.Load(); n != 1 || all != i+1 {
					t.Errorf("connection %d: %d open, %d accepted", i, n, all)
				}
				if _, ok := Underneath(c).(*net.TCPConn); !ok {
					t.Errorf("underneath is %T", Underneath(c))
				}
				for range 2 { // closing twice counts once
					_ = c.Close()
				}
				if n := count.Open.Load(); n != 0 {
					t.Errorf("%d open after the close", n)
				}
				if _, err := io.ReadAll(client); err != nil {
					t.Error(err)
				}
				if err := client.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
