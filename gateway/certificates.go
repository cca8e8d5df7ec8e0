package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"sync"
)

// secure reads the certificates of a front end that speaks protocols; nil: it speaks plain
// text. Later readings are logged, and counted as the configuration "NAME certificates".
func (g *Gateway) secure(name string, files TLSFiles, protocols ...string) (*tls.Config, error) {
	if files.Cert == "" {
		return nil, nil
	}
	reload := g.stats.Reload(name + " certificates")
	certificates, err := files.Open(func(err error) {
		reload.Done(err)
		if err != nil {
			g.logger.Error("the old certificates stay in use", "of", name, "error", err)
			return
		}
		g.logger.Info("certificates were read again", "of", name)
	}, protocols...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	reload.Done(nil)
	g.secured = append(g.secured, certificates)
	return certificates.Config(), nil
}

// watchCertificates looks at all certificates until ctx ends, besides at handshakes, so that
// a broken file is known before somebody needs it.
func (g *Gateway) watchCertificates(ctx context.Context) {
	if len(g.secured) == 0 {
		return
	}
	var watching sync.WaitGroup
	for _, c := range g.secured {
		watching.Go(func() { c.Run(ctx) })
	}
	watching.Wait()
}
