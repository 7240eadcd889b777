//go:build !race

package programs

// raceEnabled tells tests to do less where they are ten times slower.
const raceEnabled = false
