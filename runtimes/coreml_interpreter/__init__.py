"""An interpreter of Core ML packages in numpy: it runs what was saved, and nothing that only the exporter knows."""
