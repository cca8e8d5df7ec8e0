module github.com/sluice-serve/sluice/scripts/interop/hey

go 1.26.0

tool github.com/rakyll/hey

require (
	github.com/rakyll/hey v0.1.4 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/text v0.42.0 // indirect
)
