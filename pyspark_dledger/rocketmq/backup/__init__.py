"""Backups of one member of a group, and members restored from them."""

from pyspark_dledger.rocketmq.backup.backup_job import BackupReport, backup
from pyspark_dledger.rocketmq.backup.member_copy import damaged_files, read_manifest
from pyspark_dledger.rocketmq.backup.restore_job import RestoreReport, restore

__all__ = ["BackupReport", "RestoreReport", "backup", "damaged_files", "read_manifest", "restore"]
