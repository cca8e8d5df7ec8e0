package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// ports are the ports really listened on; 0 where a protocol is off.
type ports struct {
	HTTP    int `json:"http"`
	GRPC    int `json:"grpc"`
	Metrics int `json:"metrics"`
}

// write puts the ports into a file that appears whole.
func (p ports) write(file string) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".ports-*")
	if err != nil {
		return fmt.Errorf("port file: %w", err)
	}
	_, err = tmp.Write(append(data, '\n'))
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("port file: %w", err), os.Remove(tmp.Name()))
	}
	return nil
}

// metricsServer serves the metrics on a port of their own.
type metricsServer struct {
	listener net.Listener
	server   *http.Server
}

// metricsTimeout bounds reading a scrape's request and writing its answer.
const metricsTimeout = 30 * time.Second

func listenMetrics(ctx context.Context, l Listen, handler http.Handler) (*metricsServer, error) {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(l.Address, strconv.Itoa(l.Port)))
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return &metricsServer{listener: lis, server: &http.Server{Handler: handler, ReadHeaderTimeout: metricsTimeout,
		ReadTimeout: metricsTimeout, WriteTimeout: metricsTimeout, IdleTimeout: 2 * metricsTimeout, MaxHeaderBytes: 64 << 10}}, nil
}

func (m *metricsServer) port() int { return portOf(m.listener.Addr()) }

// serve returns nil once stop was called.
func (m *metricsServer) serve() error {
	if err := m.server.Serve(m.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

// stop closes the listener and every connection.
func (m *metricsServer) stop() error { return m.server.Close() }

func portOf(a net.Addr) int {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.Port
	}
	return 0
}
