// Package probe says whether a server lives, for health checks in images without a shell.
// sluice health and sluice-worker --probe call it; it keeps no state.
package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// Reacts returns nil when who listens at an address of a network (as for net.Dial) lives:
// it accepts a connection and reacts to its end, which the kernel alone would not. ctx
// has a deadline; without a reaction by then the error is an os.ErrDeadlineExceeded.
func Reacts(ctx context.Context, network, address string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		err = half.CloseWrite()
	}
	end, ok := ctx.Deadline()
	if !ok {
		end = time.Now() // a caller's fault, which must not wait for ever
	}
	if err = errors.Join(err, conn.SetReadDeadline(end)); err != nil {
		return err
	}
	// the server closes it, or greets before
	if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("who listens at %s does not react: %w", address, err)
	}
	return nil
}
