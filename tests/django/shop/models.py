from django.db import models


class Order(models.Model):
    state = models.CharField(max_length=20, default="new")

    class Meta:
        app_label = "shop"


class Note(models.Model):
    order = models.ForeignKey(Order, on_delete=models.CASCADE)

    class Meta:
        app_label = "shop"
