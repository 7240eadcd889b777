package store

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"time"

	"jpintel/migrations"
)

// migrate brings the schema up to date: each step in its own transaction,
// recorded with its hash. A process that is no server must not change the
// schema under one that is.
func (db *DB) migrate(ctx context.Context, server bool) error {
	all, err := migrations.All()
	if err != nil {
		return err
	}
	applied, err := db.history(ctx, all)
	if err != nil || applied == len(all) {
		return err
	}
	if !server {
		lock, there, err := db.turn(ctx, all, applied)
		if err != nil || lock == nil {
			return err
		}
		defer lock.release()
		applied = there
	}
	for _, m := range all[applied:] {
		if err := db.apply(ctx, m); err != nil {
			return fmt.Errorf("migration %s: %w", m.Name, err)
		}
	}
	return nil
}

// stillTries is how often a command looks at a schema that does not come forward
// before it takes whoever holds the file for a server; half a second each.
const stillTries = 4

// turn waits until this process may migrate, from what is applied then on. Whoever
// has the lock may be a command that migrates: while the schema comes forward it is
// one, and it may leave nothing to do: then there is no lock, and no error.
func (db *DB) turn(ctx context.Context, all []migrations.Migration, before int) (l *lock, applied int, err error) {
	for still := 0; ; still++ {
		l, lockErr := acquireLock(db.path+".lock", db.BootID)
		if applied, err = db.history(ctx, all); err == nil && lockErr == nil && applied < len(all) {
			return l, applied, nil
		}
		if lockErr == nil {
			err = errors.Join(err, l.release())
		}
		if err != nil || applied == len(all) {
			return nil, applied, err
		}
		if !errors.Is(lockErr, ErrLocked) {
			return nil, applied, lockErr
		}
		if applied > before {
			before, still = applied, 0
		}
		if still == stillTries {
			return nil, applied, fmt.Errorf("schema is at %d, this program knows %d: restart the server with this version first (%w)", applied, len(all), lockErr)
		}
	}
}

// history verifies what ran on this file and returns how many steps that were.
func (db *DB) history(ctx context.Context, all []migrations.Migration) (int, error) {
	if _, err := db.writer.ExecContext(ctx, `
		CREATE TABLE IF NOT EXISTS schema_migrations (
		  version       INTEGER PRIMARY KEY,
		  name          TEXT    NOT NULL,
		  sha256        TEXT    NOT NULL,
		  applied_at_ms INTEGER NOT NULL
		) STRICT`); err != nil {
		return 0, fmt.Errorf("reading the schema's history: %w", err)
	}
	done, err := Migrations(ctx, db.writer)
	if err != nil {
		return 0, err
	}
	return len(done), verify(done, all)
}

// verify holds what ran on a file against what this program knows.
func verify(done []Applied, all []migrations.Migration) error {
	for i, m := range done {
		switch {
		case i >= len(all):
			return fmt.Errorf("the file's schema is at %d (%s), this program knows %d: use the newer program", len(done), done[len(done)-1].Name, len(all))
		case m.Version != all[i].Version || m.Name != all[i].Name || m.Hash != all[i].Hash:
			return fmt.Errorf("migration %d ran on this file as %s (%.8s…) and is %s (%.8s…) in this program: a released migration must never be edited", m.Version, m.Name, m.Hash, all[i].Name, all[i].Hash)
		}
	}
	return nil
}

// MigrationStatus lists what ran on the file at path and, with a zero At, what
// [Open] would run. It changes nothing and makes no file. Beside an error, the
// list has what ran.
func MigrationStatus(ctx context.Context, path string) ([]Applied, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("reading the schema's history: %w", err)
	}
	// Not dsn: it would turn an empty file into a database.
	file, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?mode=rw&_pragma=busy_timeout("+strconv.Itoa(commandWait)+")&_pragma=query_only(1)")
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	defer file.Close()
	var begun bool
	if err := file.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'schema_migrations')`).Scan(&begun); err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	var done []Applied
	if begun {
		if done, err = Migrations(ctx, file); err != nil {
			return nil, err
		}
	}
	all, err := migrations.All()
	if err == nil {
		err = verify(done, all)
	}
	if err != nil {
		return done, err
	}
	for _, m := range all[len(done):] {
		done = append(done, Applied{Migration: m})
	}
	return done, nil
}

// Applied is a migration that ran on a file.
type Applied struct {
	migrations.Migration
	At time.Time
}

// Migrations lists what ran on a file, in order; SQL is left empty.
func Migrations(ctx context.Context, db *sql.DB) ([]Applied, error) {
	rows, err := db.QueryContext(ctx, `SELECT version, name, sha256, applied_at_ms FROM schema_migrations ORDER BY version`)
	if err != nil {
		return nil, fmt.Errorf("reading the schema's history: %w", err)
	}
	defer rows.Close()
	var all []Applied
	for rows.Next() {
		var m Applied
		var at int64
		if err := rows.Scan(&m.Version, &m.Name, &m.Hash, &at); err != nil {
			return nil, fmt.Errorf("reading the schema's history: %w", err)
		}
		m.At = time.UnixMilli(at).UTC()
		all = append(all, m)
	}
	return all, rows.Err()
}

// Migrations lists what ran on this file, in order.
func (db *DB) Migrations(ctx context.Context) ([]Applied, error) { return Migrations(ctx, db.reader) }

func (db *DB) apply(ctx context.Context, m migrations.Migration) error {
	tx, err := db.writer.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, m.SQL); err != nil {
		return err
	}
	now := time.Now().UnixMilli()
	if m.Version == 1 {
		if err := db.layControl(ctx, tx, now); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO schema_migrations (version, name, sha256, applied_at_ms) VALUES ($1, $2, $3, $4)`,
		m.Version, m.Name, m.Hash, now); err != nil {
		return err
	}
	return tx.Commit()
}

func (db *DB) layControl(ctx context.Context, tx *sql.Tx, now int64) error {
	epoch := make([]byte, 6)
	rand.Read(epoch) // never fails
	_, err := tx.ExecContext(ctx, `INSERT INTO control (id, version, epoch, created_at_ms) VALUES (1, 1, $1, $2)`, hex.EncodeToString(epoch), now)
	return err
}

const keyCheck = "jpintel key check"

// checkKeys refuses to go on with keys that are not this file's: a wrong salt
// would turn every API key away, a wrong master key every delivery. The first
// opening with keys records what they are recognised by.
func (db *DB) checkKeys(ctx context.Context) error {
	if db.Keys == nil {
		return nil
	}
	var sealed, hash []byte
	if err := db.writer.QueryRowContext(ctx, `SELECT key_check, salt_check FROM control WHERE id = 1`).Scan(&sealed, &hash); err != nil {
		return fmt.Errorf("reading the control row: %w", err)
	}
	if hash == nil {
		_, err := db.writer.ExecContext(ctx, `UPDATE control SET key_check = $1, salt_check = $2 WHERE id = 1 AND salt_check IS NULL`,
			db.Keys.Seal([]byte(keyCheck), keyCheck), db.Keys.Hash(keyCheck))
		return err
	}
	if !hmac.Equal(hash, db.Keys.Hash(keyCheck)) {
		return errors.New("JPINTEL_API_KEY_SALT is not the one this file was made with: every API key would be refused")
	}
	if _, err := db.Keys.Unseal(sealed, keyCheck); err != nil {
		return fmt.Errorf("JPINTEL_MASTER_KEY does not open this file's secrets: %w", err)
	}
	return nil
}

// RekeyCheck seals what the master key is recognised by under the first key.
// Every other sealed value has to be sealed again before: after it, a start
// without the old key is let through.
func RekeyCheck(tx *Tx) error {
	var sealed []byte
	if err := tx.QueryRow(`SELECT key_check FROM control WHERE id = 1`).Scan(&sealed); err != nil {
		return fmt.Errorf("reading the control row: %w", err)
	}
	sealed, changed, err := tx.Keys().Reseal(sealed, keyCheck)
	if err != nil || !changed {
		return err
	}
	_, err = tx.Exec(`UPDATE control SET key_check = $1 WHERE id = 1`, sealed)
	return err
}
