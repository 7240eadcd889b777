package store_test

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"jpintel/store"
)

// benchDoor lets callers write b.N times in all, some rows each time. The file
// is open as for a command: every commit bumps the control row's version, by
// which commits can be counted.
func benchDoor(b *testing.B, callers, rows int) {
	ctx := context.Background()
	db := open(b, filepath.Join(b.TempDir(), "jpintel.db"), store.Options{})
	defer shut(b, db)
	addNumbers(b, db)
	before, err := store.ReadControl(db.Reader(ctx))
	if err != nil {
		b.Fatal(err)
	}
	body := make([]byte, 200)
	insertRows := func(tx *store.Tx) error {
		for range rows {
			if _, err := tx.Exec(`INSERT INTO numbers (body) VALUES ($1)`, body); err != nil {
				return err
			}
		}
		return nil
	}
	var calls atomic.Int64
	var writers sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range callers {
		writers.Go(func() {
			for calls.Add(1) <= int64(b.N) {
				if err := db.Write(ctx, insertRows); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	b.StopTimer()
	after, err := store.ReadControl(db.Reader(ctx))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/float64(after.Version-before.Version), "calls/commit")
	b.ReportMetric(float64(b.N*rows)/b.Elapsed().Seconds(), "rows/s")
}

func BenchmarkDoorSingle(b *testing.B)  { benchDoor(b, 1, 1) }
func BenchmarkDoor64(b *testing.B)      { benchDoor(b, 64, 1) }
func BenchmarkDoorRows100(b *testing.B) { benchDoor(b, 1, 100) }
