package main

func attacksOnRegions() []attack { return nil }
