// Command s3server is a local S3 server for the end-to-end tests: one bucket, "bucket",
// in memory, without checks of who asks. It prints its address, and ends when its
// standard input does, so that it can't outlive the test.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

func main() {
	address := "127.0.0.1:0"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	backend := s3mem.New()
	if err := backend.CreateBucket("bucket"); err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // however it ends
		os.Exit(0)
	}()
	log.Fatal(http.Serve(l, gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()))
}
