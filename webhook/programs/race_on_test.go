//go:build race

package programs

// raceEnabled tells tests to do less: they are ten times slower here.
const raceEnabled = true
