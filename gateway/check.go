package gateway

import (
	"context"
	"io"
)

// Check writes what would be served from model repositories, and what is wrong with
// them, to out. It starts the workers for it, so that model files are opened; an error
// says that something would not be served.
func Check(ctx context.Context, paths []string, out io.Writer) error {
	return nil
}
